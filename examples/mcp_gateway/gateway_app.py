"""What an MCP gateway needs of Turngate: a worker that judges its calls by this policy. The tools are the client's own.

Run it with ``turngate up gateway_app:app``, and put into the client's configuration, in place of its server's command::

    turngate mcp-gateway --name git --directory . -- python -m mcp_server_git

with TURNGATE_API_URL and TURNGATE_TOKEN set (``turngate token git --scope runs:write --scope requests:read --source
git``). ``client.py``
beside this file is such a client, cut down to two calls. It needs Turngate's extra ``mcp`` and the package ``mcp-server-git``.
"""

from __future__ import annotations

from turngate import Agent, App, Toolkit

# An app has an agent; this one has no part in the gateway's calls, which belong to the agent ``external-git``.
app = App(
    agents=[Agent(name="host", instructions="Say hello.", toolkit=Toolkit.of(), model="scripted:script.yaml")],
    policy="policy.toml",
)
