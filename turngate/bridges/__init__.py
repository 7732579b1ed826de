"""Bridges: Turngate's gates for loops that are not Turngate's own. Built on the public client, like a user's program."""
