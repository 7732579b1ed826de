"""What only watchers read: deltas and progress. Swept away, no part of the log."""
