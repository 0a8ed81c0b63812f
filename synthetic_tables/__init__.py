"""Wing: synthetic tables and the generators that make them."""
