"""What surrounds a model request: routing, streaming, history, compaction and summaries."""
