"""What is erased, when, and what must be kept."""
