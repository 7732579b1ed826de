"""Logging in: link, password, OpenID."""
