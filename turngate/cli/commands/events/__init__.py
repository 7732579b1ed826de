"""The event log: audit it, and notify people of what happens."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="People and records")
app.add("notify", "notify:app", "Notifications: check channels, test them, read the delivery log.")
app.add("audit", "audit:app", "The audit log: export it, and verify that no one has changed it.")
app.add("evidence", "evidence:app", "Write a signed package for auditors about a period, or verify one.")
