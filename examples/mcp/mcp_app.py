"""An agent that keeps a git repository through an MCP server: it may look by itself, and a person approves each commit.

It shows how a server's tools become a toolkit under a prefix, which of them run without asking, and a policy that denies
one of them. It needs Turngate's extra ``mcp`` and the packages ``mcp-server-git`` and ``mcp-server-time``. Run it in a
repository, or name one in ``KEEPER_REPOSITORY``: ``turngate up mcp_app:app``.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

from turngate import Agent, App, Limits, Toolkit
from turngate.toolkits.mcp import StdioServer, mcp_toolkit

HERE = Path(__file__).parent
REPOSITORY = Path(os.environ.get("KEEPER_REPOSITORY", ".")).resolve()

git = mcp_toolkit(
    StdioServer(
        # Any command will do: ["uvx", "mcp-server-git"], ["npx", "-y", "some-server"], ["docker", "run", "-i", "image"].
        command=[sys.executable, "-m", "mcp_server_git", "--repository", str(REPOSITORY)],
        # A server gets PATH, HOME and the like, and these variables; no other variable of the worker.
        env=dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "Keeper")
        | dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "keeper@example.com"),
        cwd=REPOSITORY,
    ),
    name="git",
    allow=["git_status", "git_diff_unstaged", "git_add", "git_commit", "git_reset"],
    effects={"git_status": "read", "git_diff_unstaged": "read", "git_add": "idempotent"},
    # Calls of all other tools are asked about.
    ask={"git_status": False, "git_diff_unstaged": False, "git_add": False},
    timeout=timedelta(minutes=1),
)

clock = mcp_toolkit(
    StdioServer(command=[sys.executable, "-m", "mcp_server_time", "--local-timezone", "Etc/UTC"]),
    name="time",
    effects={"get_current_time": "read", "convert_time": "read"},
    ask=False,
)

app = App(
    agents=[
        Agent(
            name="keeper",
            instructions="Keep the repository tidy. Look before you commit, and say in the message what changed.",
            toolkit=Toolkit.compose(Toolkit.namespace("repo", git), Toolkit.namespace("clock", clock)),
            model=os.environ.get("TURNGATE_MODEL") or f"scripted:{HERE / 'script.yaml'}",
            limits=Limits(steps=20),
        )
    ],
    policy="policy.toml",
)
