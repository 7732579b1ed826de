"""Where the store and Temporal differ."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Serve")
app.add("recover", "recovery:recover", "Continue runs whose workflow is gone, from their last closed step.")
app.add("reconcile", "recovery:reconcile", "Compare the store with Temporal, and report runs that differ.")
