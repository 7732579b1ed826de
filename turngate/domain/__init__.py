"""Pure rules: standard library and pydantic only, safe inside Temporal's workflow sandbox. Imports no I/O."""
