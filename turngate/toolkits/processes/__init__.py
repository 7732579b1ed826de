"""Processes that tools start: one group, bounded output, one end."""
