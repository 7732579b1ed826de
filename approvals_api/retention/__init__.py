"""Keeping and erasing: what goes when, by whose wish, and what may not go."""
