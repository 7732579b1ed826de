"""The servers, and what a new release of them needs."""
