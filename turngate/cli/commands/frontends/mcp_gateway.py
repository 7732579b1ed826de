"""``turngate mcp-gateway``: a client's configuration has this command instead of an MCP server's own."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from turngate.cli.api_link import find_api
from turngate.cli.options import DataDir
from turngate.cli.parts.confinement import confine_tools
from turngate.client import TurngateClient
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.external import MAX_TIMEOUT_SECONDS, SOURCE
from turngate.runtime.settings import ENV_PREFIX, load_stack_settings
from turngate.toolkits.mcp import SERVER_PLACES
from turngate.toolkits.mcp_servers.servers import HttpServer, Server, StdioServer

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
    directory: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Where the server starts, and what it may change.",
            show_default="this directory; an empty one if this is your home directory or above it",
        ),
    ] = None,
    readable: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, metavar="PATH", help="Another file or directory that the server may read. Repeatable."
        ),
    ] = None,
    writable: Annotated[
        list[Path] | None,
        typer.Option(exists=True, metavar="PATH", help="Another file or directory that it may change. Repeatable."),
    ] = None,
    network: Annotated[bool, typer.Option("--network", help="Let the server reach other machines.")] = False,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="VARIABLE", help="A variable of this environment that the server gets. Repeatable."),
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
    http_token_variable: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE",
            help="With --http: the variable that holds the token which clients must send.",
            show_default="a new token, printed at each start",
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
    and requests:read. The server runs confined: what it may reach is what the options below say.
    """
    from turngate.bridges.mcp_gateway.downstream import CONNECT_SECONDS  # noqa: PLC0415 - the same
    from turngate.bridges.mcp_gateway.gateway import McpGateway  # noqa: PLC0415 - `mcp` is an extra
    from turngate.toolkits.mcp_servers.connection import connected  # noqa: PLC0415 - the same

    if bool(command) == bool(url):
        raise ConfigurationError("name the server: either `turngate mcp-gateway -- COMMAND ARGS…`, or --url URL")
    if not SOURCE.fullmatch(name):
        raise ConfigurationError(f"--name {name!r}: use lower-case letters, digits, '_' and '-', at most 50")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("turngate.mcp").setLevel(logging.INFO)  # what the server says on stderr
    settings = load_stack_settings(data_dir=data_dir, api_url=api_url)
    server: Server
    if url is not None:
        server = HttpServer(url=url, headers=_headers(bearer_variable))
    else:
        server = StdioServer(
            command=command or (),
            env={name: _variable(name, "--env") for name in env or ()},
            cwd=directory or project_here(),
            readable=readable or (),
            writable=writable or (),
            network=network,
        )
    SERVER_PLACES.update(server.changeable)
    confine_tools(settings, (*server.programs, *settings.obeyed_files))  # before a token is read
    link = find_api(data_dir, api_url)
    connect = partial(connected, server, name=server.label, seconds=CONNECT_SECONDS, answer_seconds=timeout_seconds)

    async def serve() -> None:
        async with TurngateClient(link.url, token=link.token) as client:
            gateway = McpGateway(
                client,
                connect,
                name=name,
                trust_annotations=trust_annotations,
                timeout_seconds=timeout_seconds,
                answer_within=answer_within,
            )
            if http is None:
                await gateway.serve_stdio()
            else:
                await gateway.serve_http(http, _http_token(http, http_token_variable))

    asyncio.run(serve())


def project_here() -> Path | None:
    """Return the current directory, as a client starts it for a project; None: it holds what isn't the server's business."""
    here = Path.cwd()
    return None if Path.home().resolve().is_relative_to(here) else here


def _http_token(port: int, variable: str | None) -> str:
    """Return the token that clients must send; a new one is printed."""
    if variable is not None:
        return _variable(variable, "--http-token-variable")
    token = secrets.token_urlsafe(32)
    typer.echo(f"Clients of http://127.0.0.1:{port}/mcp send: Authorization: Bearer {token}", err=True)
    return token


def _headers(variable: str | None) -> dict[str, str]:
    return {} if variable is None else {"Authorization": f"Bearer {_variable(variable, '--bearer-variable')}"}


def _variable(name: str, option: str) -> str:
    if name.upper().startswith(ENV_PREFIX):
        raise ConfigurationError(
            f"{option} {name}: no other server gets Turngate's own variables: it could decide with them"
        )
    value = os.environ.get(name, "")
    if not value:
        raise ConfigurationError(f"{option}: the variable {name} is not set or is empty")
    return value
