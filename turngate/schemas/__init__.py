"""JSON Schemas from outside: check that one can be used, and check values against it within a bound.."""
