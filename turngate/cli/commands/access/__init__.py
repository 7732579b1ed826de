"""Who may come in: people, sessions, tokens."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="People and records")
app.add("login-link", "sessions:login_link", "Print a link that logs one browser in, once, within 24 hours.")
app.add("user", "users:app", "The people who can log in: names, roles, passwords.")
app.add("people", "people:app", "The ids by which decisions and the audit log name people.")
app.add("token", "tokens:app", "API tokens for programs: add, list, revoke.")
app.add("keys", "keys:app", "Encryption of what is stored: keys, their rotation, what is encrypted.")
app.add("session", "sessions:app", "See who is logged in, and log people out.")
