"""Live events, the audit log and notifications."""
