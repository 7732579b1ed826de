"""Finding and repairing what a crash or a lost Temporal left behind."""
