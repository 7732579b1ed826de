"""Where the store and Temporal differ."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Serve")
app.add("recover", "recovery:recover", "Continue runs whose workflow is gone, from their last closed step.")
app.add("reconcile", "recovery:reconcile", "Compare the store with Temporal, and report runs that differ.")
app.add("backup", "backup:backup", "Write a backup of the store, while everything runs.")
app.add(
    "restore", "restore:restore", "Put a backup in place of the store, after it was verified, and hold its live runs."
)
app.add("drill", "drill:drill", "Record a drill that you have done in the audit log.")
