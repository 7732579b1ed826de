"""Runs: start, follow, steer, explain, compare, fork, repeat."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Runs")
app.add("run", "runs:run", "Start a run and follow it. In a terminal you can answer its requests right here.")
app.add("watch", "runs:watch", "Follow a run to its end. In a terminal you can answer its requests right here.")
app.add("runs", "runs:runs", "List runs, newest first.")
app.add("send", "control:send", "Send a message to a run's conversation, while the run is live or later.")
app.add("pause", "control:pause", "Hold a run: calls that run finish, and nothing new starts until you resume it.")
app.add("resume", "control:resume", "Resume a run that is on hold.")
app.add("interrupt", "control:interrupt", "Stop a run: its running tools are cancelled and its open requests close.")
app.add("model", "control:model", "Switch a live run to another model.")
app.add("explain", "explain:explain", "Say why a run failed or what it waits for, and what to do next.")
app.add(
    "logs", "logs:logs", "Print an error with its traceback, worker and build, by the id that a log line or page shows."
)
app.add("result", "result:result", "Print the whole result of a call, also when the model got only a part of it.")
app.add(
    "compare", "compare:compare", "Compare two runs, such as a run and its fork: what they share and where they differ."
)
app.add("retry", "fork:retry", "Continue a run that failed or was interrupted, where it ended.")
app.add("fork", "fork:fork", "Continue a run from one of its closed steps, in a new conversation.")
app.add(
    "replay", "dry_run:replay", "Repeat a run from its recorded results, as a dry run: no tool runs, no one is asked."
)
app.add("export", "export:export", "Print a run that has ended as a fixture, which a test plays again.")
