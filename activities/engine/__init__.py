"""What activities share: the engine, the rules in force, overrides of a run, author code, heartbeats and costs."""
