"""What is erased, and what may not be."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="People and records")
app.add("erase", "erase:erase", "Erase what was said in a conversation, or what is stored of a person.")
app.add("retention", "retention:app", "What is kept how long: last and next run, check the file, preview, run.")
app.add("hold", "hold:app", "Legal holds: what may not be erased. Add, list, remove.")
