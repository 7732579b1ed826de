"""Traces by OpenTelemetry: spans made from the log of events, and the current span while a tool or a model works."""
