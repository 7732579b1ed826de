"""An MCP server that puts another one's tools behind the gates."""
