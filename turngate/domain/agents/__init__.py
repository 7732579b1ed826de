"""Agents and their app: limits, hooks, context window, models, overrides, schedules."""
