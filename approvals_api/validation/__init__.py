"""Checks of untrusted input that know nothing of HTTP."""
