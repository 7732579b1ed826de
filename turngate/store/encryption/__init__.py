"""Encryption of content at rest: what a store's database holds is sealed, what store functions see is not (docs/adr/0052)."""
