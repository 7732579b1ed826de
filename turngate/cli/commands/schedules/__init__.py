"""Runs that the clock starts."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Runs")
app.add("schedule", "schedules:app", "Runs that start by the clock: create, list, change, pause, run, delete.")
