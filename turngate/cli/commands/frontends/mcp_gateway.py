"""``turngate mcp-gateway``: put in front of an MCP server, in the place where a client would have it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Annotated, Final

import typer

from turngate.cli.api_link import find_api
from turngate.cli.options import DataDir
from turngate.client import TurngateClient
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.external import MAX_TIMEOUT_SECONDS, SOURCE

MAX_PORT: Final = 65_535


def mcp_gateway(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND ARGS…", help="Starts the server on stdio.", show_default=False),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Names the gateway: policy and inbox show its calls as of agent external-NAME.")
    ] = "mcp",
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="In place of COMMAND: a server over HTTP.", show_default=False)
    ] = None,
    bearer_variable: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="The variable that holds that server's token.", show_default=False),
    ] = None,
    http: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=MAX_PORT,
            help="Serve at http://127.0.0.1:PORT/mcp in place of stdio.",
            show_default=False,
        ),
    ] = None,
    trust_annotations: Annotated[
        bool,
        typer.Option(
            "--trust-annotations",
            help="A tool that says it only reads runs where no rule speaks of it. Else a person is asked.",
        ),
    ] = False,
    timeout_seconds: Annotated[
        int, typer.Option(min=1, max=MAX_TIMEOUT_SECONDS, help="How long one call may run at the server.")
    ] = 600,
    answer_within: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="For a client that does not wait long: tell it after so long to make the call again. Else it waits.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    api_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Turngate's API.", show_default="TURNGATE_API_URL, or that of this directory"),
    ] = None,
) -> None:
    """Put Turngate's gates in front of the tools of an MCP server.

    Enter this in a client's configuration where the server's own command would stand:
    `turngate mcp-gateway --name files -- COMMAND ARGS…`. Each call is judged by policy; one that asks waits for an operator, also
    when the client or this process ends meanwhile. The token (TURNGATE_TOKEN) needs the scopes runs:write and requests:read.
    """
    from turngate.bridges.mcp_gateway.downstream import Behind  # noqa: PLC0415 - the same
    from turngate.bridges.mcp_gateway.gateway import McpGateway  # noqa: PLC0415 - `mcp` is an extra

    if bool(command) == bool(url):
        raise ConfigurationError(
            "say which server's tools these are: `turngate mcp-gateway -- COMMAND ARGS…`, or --url URL; one of both"
        )
    if not SOURCE.fullmatch(name):
        raise ConfigurationError(f"--name {name!r}: lower-case letters, digits, '_' and '-', at most 50")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    link = find_api(data_dir, api_url)
    behind = Behind(command=command or (), url=url or "", headers=_headers(bearer_variable))

    async def serve() -> None:
        async with TurngateClient(link.url, token=link.token) as client:
            gateway = McpGateway(
                client,
                behind,
                name=name,
                trust_annotations=trust_annotations,
                timeout_seconds=timeout_seconds,
                answer_within=answer_within,
            )
            await (gateway.serve_stdio() if http is None else gateway.serve_http(http))

    asyncio.run(serve())


def _headers(variable: str | None) -> dict[str, str]:
    if variable is None:
        return {}
    token = os.environ.get(variable, "")
    if not token:
        raise ConfigurationError(f"--bearer-variable: the variable {variable} is not set, or empty")
    return {"Authorization": f"Bearer {token}"}
