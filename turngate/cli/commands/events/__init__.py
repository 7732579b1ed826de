"""The event log: audit it, and notify people of what happens."""
