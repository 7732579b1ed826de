"""Turngate's parts as a process runs them, each an async context manager: ``turngate up`` is all of them."""
