"""The operators' inbox in a terminal."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Requests and policy")
app.add("requests", "requests:requests", "List the requests that wait for a decision, the most urgent first.")
app.add("show", "requests:show", "Print a request: the exact call, and what a decision needs.")
app.add("decide", "requests:decide", "Decide a request: approve, edit, reject, or answer it.")
