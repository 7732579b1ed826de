"""Execution: the door to a tool, the executor, and what becomes of a call."""
