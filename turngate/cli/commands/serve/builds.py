"""``turngate builds``: the builds of a "worker deployment" in Temporal. The SDK has only raw calls for them.

https://docs.temporal.io/production-deployment/worker-deployments/worker-versioning
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Final

import typer
from temporalio.api.workflowservice.v1 import (
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turngate.approvals_api.gateway.task_queues import Build, known_builds
from turngate.cli import terminal
from turngate.cli.options import DataDir
from turngate.cli.temporal_link import find_address
from turngate.domain.errors import ConfigurationError, ConflictError, NotFoundError, TurngateError, UnavailableError
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.runtime.temporal_client import connect

WAIT_SECONDS: Final = 15.0
PAUSE_SECONDS: Final = 0.1
ASK_WAIT: Final = timedelta(seconds=10)
BUILDS_LISTED: Final = 100
NOT_YET: Final = frozenset({RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION})


async def known(client: Client, deployment_name: str) -> list[Build]:
    """Return the builds that workers have started with, newest first. Raises UnavailableError."""
    try:
        return await known_builds(client, deployment_name, limit=BUILDS_LISTED, wait=ASK_WAIT)
    except RPCError as error:
        raise UnavailableError(f"Temporal cannot list the builds: {error.message}") from error


async def make_current(
    client: Client,
    deployment_name: str,
    build_id: str | None,
    *,
    wait_seconds: float = WAIT_SECONDS,
    notify: Callable[[str], None] | None = None,
) -> None:
    """Let new runs go to workers of this build, and wait for the first of them to start. Safe to repeat.

    ``build_id`` None: to workers without a build, as before the first build. ``notify`` is called once when there is a wait.

    Raises:
        NotFoundError: no worker of the build started within ``wait_seconds``.
        ConflictError: Temporal refuses, for example because no worker of the build serves a task queue that the current one
            serves. A worker's queues become known one after the other, so this function waits for that too.
        UnavailableError: Temporal is away.
    """
    wanted = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=deployment_name, build_id=build_id or "", identity=client.identity
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    while True:
        try:
            await client.workflow_service.set_worker_deployment_current_version(wanted)
        except RPCError as error:
            if build_id is None and error.status is RPCStatusCode.NOT_FOUND:
                return  # no worker ever had a build
            if build_id is None or error.status not in NOT_YET or loop.time() > deadline:
                raise _refused(error, build_id) from error
            if notify is not None:
                notify(f"waiting up to {wait_seconds:g} s for a worker of build {build_id} …")
                notify = None
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return


def _refused(error: RPCError, build_id: str | None) -> TurngateError:
    if build_id is None:
        return UnavailableError(f"Temporal could not give new runs to workers without a build: {error.message}")
    if error.status is RPCStatusCode.NOT_FOUND:
        return NotFoundError(
            f"no worker of build {build_id} has started yet: start `turngate worker --build-id {build_id}` first"
        )
    if error.status is RPCStatusCode.FAILED_PRECONDITION:
        return ConflictError(f"Temporal does not make build {build_id} the current one: {error.message}")
    return UnavailableError(f"Temporal could not make build {build_id} the current one: {error.message}")


def builds(
    set_current: Annotated[
        str | None,
        typer.Option(
            metavar="BUILD",
            show_default=False,
            help="From now on, new runs go to workers of this build, and so do open runs that have no build yet.",
        ),
    ] = None,
    unset_current: Annotated[
        bool,
        typer.Option(
            "--unset-current",
            help="From now on, new runs go to workers without a build. Runs that a build began stay with it.",
        ),
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """List the workers' builds and their open runs, or choose the build for new runs.

    A worker has a build if it was started with `turngate worker --build-id`. A run stays with the build that began it until it
    continues as new, which long runs do. You can stop the workers of a build that is not current and has no open runs.
    """
    if unset_current and set_current is not None:
        raise ConfigurationError("choose either --set-current BUILD or --unset-current")
    asyncio.run(list_builds(load_stack_settings(data_dir=data_dir), set_current, unset=unset_current))


async def list_builds(settings: Settings, chosen: str | None, *, unset: bool = False) -> None:
    """Make the ``chosen`` build the current one, if any, then list all. Raises as :func:`known` and :func:`make_current` do.

    ``unset``: make none the current one.
    """
    client = await connect(settings, find_address(settings))
    if chosen is not None or unset:
        await make_current(client, settings.deployment_name, chosen, notify=terminal.note)
    builds = await known(client, settings.deployment_name)
    terminal.table(
        ("BUILD", "STATUS", "OPEN RUNS"),
        [(each.build_id, "current" if each.current else "", str(each.open_runs)) for each in builds],
    )
    if not builds:
        terminal.note("no worker has a build: start one with `turngate worker --build-id BUILD`")
    elif not any(each.current for each in builds):
        terminal.note("no build is current, so these workers get no new runs: turngate builds --set-current BUILD")
