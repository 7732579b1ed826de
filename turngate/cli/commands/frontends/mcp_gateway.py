"""``turngate mcp-gateway``: a client's configuration has this command instead of an MCP server's own."""

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
        typer.Argument(
            metavar="-- COMMAND ARGS…", help="The command that starts the server on stdio.", show_default=False
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(help="The gateway's name: policy and inbox show its calls as calls of the agent external-NAME."),
    ] = "mcp",
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Instead of COMMAND: the address of a server over HTTP.", show_default=False),
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
            help="Serve at http://127.0.0.1:PORT/mcp instead of stdio.",
            show_default=False,
        ),
    ] = None,
    trust_annotations: Annotated[
        bool,
        typer.Option(
            "--trust-annotations",
            help="If no rule applies, run tools that say they only read. Else a person is asked.",
        ),
    ] = False,
    timeout_seconds: Annotated[
        int, typer.Option(min=1, max=MAX_TIMEOUT_SECONDS, help="How long a call may run at the server.")
    ] = 600,
    answer_within: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="For an impatient client: after so long, answer that it should make the call again. Else it waits.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    api_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The address of Turngate's API.",
            show_default="TURNGATE_API_URL, or that of this directory",
        ),
    ] = None,
) -> None:
    """Put Turngate's gates in front of the tools of an MCP server.

    Write this in a client's configuration instead of the server's own command:
    `turngate mcp-gateway --name files -- COMMAND ARGS…`. Policy judges each call. A call that needs approval waits for an
    operator, even if the client or this process ends in the meantime. The token (TURNGATE_TOKEN) needs the scopes runs:write
    and requests:read.
    """
    from turngate.bridges.mcp_gateway.downstream import DownstreamServer  # noqa: PLC0415 - the same
    from turngate.bridges.mcp_gateway.gateway import McpGateway  # noqa: PLC0415 - `mcp` is an extra

    if bool(command) == bool(url):
        raise ConfigurationError("name the server: either `turngate mcp-gateway -- COMMAND ARGS…`, or --url URL")
    if not SOURCE.fullmatch(name):
        raise ConfigurationError(f"--name {name!r}: use lower-case letters, digits, '_' and '-', at most 50")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    link = find_api(data_dir, api_url)
    server = DownstreamServer(command=command or (), url=url or "", headers=_headers(bearer_variable))

    async def serve() -> None:
        async with TurngateClient(link.url, token=link.token) as client:
            gateway = McpGateway(
                client,
                server,
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
        raise ConfigurationError(f"--bearer-variable: the variable {variable} is not set or is empty")
    return {"Authorization": f"Bearer {token}"}
