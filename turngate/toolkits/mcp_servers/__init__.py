"""How MCP servers are reached and their tools declared; ``turngate.toolkits.mcp`` is what builders import."""
