"""Programs on the public client: terminal UI, editors, an MCP gateway."""

from turngate.cli.lazy import CommandGroup

app = CommandGroup(__name__, panel="Other programs")
app.add("tui", "clients:tui", "Answer requests and follow runs in a terminal UI, with the keys of the pages.")
app.add("acp", "clients:acp", "Let an editor drive an agent: the Agent Client Protocol on stdin and stdout.")
app.add(
    "mcp-gateway",
    "mcp_gateway:mcp_gateway",
    "Put Turngate's gates in front of the tools of an MCP server.",
    # The first word that is no option begins the server's command, with options of its own.
    context_settings={"allow_interspersed_args": False},
)
