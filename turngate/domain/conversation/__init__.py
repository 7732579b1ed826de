"""Messages and what keeps a conversation whole: reconciliation, clipping, summaries."""
