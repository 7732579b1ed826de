"""Programs on the public client: terminal UI, JSON-RPC, editors, an MCP gateway."""
