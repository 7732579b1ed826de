"""An MCP client that looks at a repository and creates a branch, through Turngate: ``python client.py REPOSITORY NAME``.

It knows nothing about Turngate except the command that it starts. The branch waits until a person approves it.
"""

from __future__ import annotations

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult

SERVER = [sys.executable, "-m", "mcp_server_git"]
GATEWAY = ["turngate", "mcp-gateway", "--name", "git"]


async def main(repository: str, branch: str) -> int:
    """Make the two calls and print their results. Return 1 if the branch was refused."""
    command, *args = [*GATEWAY, "--directory", repository, "--", *SERVER]
    transport = stdio_client(StdioServerParameters(command=command, args=args, env=dict(os.environ)))
    async with Client(transport, cache=None) as client:
        show(await client.session.call_tool("git_status", {"repo_path": repository}))
        result = await client.session.call_tool(
            "git_create_branch", {"repo_path": repository, "branch_name": branch}, progress_callback=show_progress
        )
        show(result)
        return 1 if result.is_error else 0


async def show_progress(_progress: float, _total: float | None, message: str | None) -> None:
    """Show that the call is alive while a person decides."""
    print("…", message, flush=True)


def show(result: CallToolResult) -> None:
    """Print the text of a result."""
    for part in result.content:
        print(getattr(part, "text", part), flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:3])))
