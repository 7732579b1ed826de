"""How things are said in a terminal: harmless text, presentations, runs in words. Pure; needs nothing of the CLI."""
