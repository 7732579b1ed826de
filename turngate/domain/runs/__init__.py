"""A run as values: its state, its requests, how it ended, and the chain of its events."""
