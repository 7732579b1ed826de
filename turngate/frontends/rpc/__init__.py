"""JSON-RPC 2.0 on stdio: each method one call of the API."""
