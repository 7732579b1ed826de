"""Execution: the door to a tool, the executor, and what happens to a call."""
