"""A command line as bash would run it: every simple command in it, and why there may be more."""
