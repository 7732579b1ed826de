"""A run followed in the terminal: watched to its end, printed line by line, its gates answered."""
