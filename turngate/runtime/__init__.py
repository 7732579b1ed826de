"""A process's environment: settings, data directory, logging, Temporal connection and the embedded Temporal server.

Composition roots (``worker.py``, ``turngate.cli``, the API's entry point) build from here and pass the parts on. Nothing
in this package is global, and nothing reads the environment at import.
"""
