"""Orchestration only. Deterministic; everything with a side effect is an activity, called by its name in the contract."""
