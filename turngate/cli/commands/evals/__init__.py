"""An app against a file of cases."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Runs")
app.add("eval", "eval:eval_app", "Run your app against a file of cases, and report how it did.")
