"""Users, passwords, sessions, tokens and one-time links."""
