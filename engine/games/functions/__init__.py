"""Functions of rows, called on neighbouring tables that are searched for."""
