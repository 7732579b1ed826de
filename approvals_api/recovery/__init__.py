"""Finding and repairing the damage of a crash or of a lost Temporal database."""
