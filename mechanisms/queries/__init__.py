"""Functions of rows that are asked a question: what their tables may hold, and what comes back of them."""
