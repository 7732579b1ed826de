"""Policy: code's answer before any person, and everything a rule can match."""
