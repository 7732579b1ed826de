"""Runs that the clock starts."""
