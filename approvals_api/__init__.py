"""The JSON API under /api/v1, the operators' pages at /, and server-sent events. Only ``gateway`` imports temporalio."""
