"""Metrics in Prometheus' text format: what this process has counted, what the store shows, and the Temporal SDK's own."""
