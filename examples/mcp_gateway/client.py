"""An MCP client that looks at a repository and makes a branch, through Turngate: ``python client.py REPOSITORY NAME``.

It knows nothing of Turngate but the command that it starts. The branch waits until somebody approves it.
"""

from __future__ import annotations

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult

SERVER = [sys.executable, "-m", "mcp_server_git"]
GATEWAY = ["turngate", "mcp-gateway", "--name", "git", "--", *SERVER]


async def main(repository: str, branch: str) -> int:
    """Make the two calls and print what they return; 1 when the branch was refused."""
    command, *args = GATEWAY
    transport = stdio_client(StdioServerParameters(command=command, args=args, env=dict(os.environ)))
    async with Client(transport, cache=None) as client:
        said(await client.session.call_tool("git_status", {"repo_path": repository}))
        made = await client.session.call_tool(
            "git_create_branch", {"repo_path": repository, "branch_name": branch}, progress_callback=waiting
        )
        said(made)
        return 1 if made.is_error else 0


async def waiting(_progress: float, _total: float | None, message: str | None) -> None:
    """Show that the call is alive while a person thinks."""
    print("…", message, flush=True)


def said(result: CallToolResult) -> None:
    """Print the text of a result."""
    for part in result.content:
        print(getattr(part, "text", part), flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:3])))
