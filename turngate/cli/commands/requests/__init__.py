"""The operators' inbox in a terminal."""
