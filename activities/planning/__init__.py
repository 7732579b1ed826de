"""Planning: each call of a response gets a verdict. Nothing runs here."""
