"""Rules and grants: read, try, store, revoke."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Requests and policy")
app.add("grants", "grants:app", "Calls that are approved in advance: list grants, revoke one.")
app.add("policy", "policy:app", "The rules that judge each call: check, explain, try, store.")
