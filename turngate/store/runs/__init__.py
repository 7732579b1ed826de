"""Runs and what belongs to one: steps, calls, executions, messages, results."""
