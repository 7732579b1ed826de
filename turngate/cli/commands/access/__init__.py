"""Who may come in: people, sessions, tokens."""
