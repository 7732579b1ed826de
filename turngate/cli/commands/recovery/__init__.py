"""Where the store and Temporal differ."""
