"""The event log, what reads it, and deliveries of notifications."""
