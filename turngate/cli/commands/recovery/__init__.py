"""Where the store and Temporal differ."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Serve")
app.add("recover", "recovery:recover", "Continue runs whose workflow is gone, from their last closed step.")
app.add("reconcile", "recovery:reconcile", "Compare the store with Temporal, and report runs that differ.")
app.add("drill", "drill:drill", "Record a drill that you have done in the audit log.")
