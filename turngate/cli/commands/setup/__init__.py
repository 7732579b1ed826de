"""Begin: make an app, watch the demo, check this machine and its models."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Set up")
app.add(
    "init",
    "init:init",
    "Make a new app in DIR: an agent with its tools, a policy, a scripted model, tests and eval cases.",
)
app.add("demo", "demo:demo", "Watch an agent fix a failing test in a small project, and decide what it may do.")
app.add("doctor", "doctor:doctor", "Check this machine, your app and its models, and say how to fix what is wrong.")
app.add("models", "models:models", "List profiles, models and providers, and whether each can be used from here.")
app.add(
    "schema",
    "schema:schema",
    "Print the JSON Schema of a scripted model's script, with which editors complete and check it.",
)
