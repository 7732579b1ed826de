"""Runs: start, follow, steer, explain, compare, fork, do over."""
