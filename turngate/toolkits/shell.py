"""The bash tool: one command in the workspace, as its own process group, which never outlives the call.

It is confined as this machine can (:mod:`turngate.toolkits.confinement`): it reads the system's programs, changes its
workspace, and has no network. The gate in front of it decides whether it runs at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from turngate import (
    CommandBlock,
    Failure,
    Ok,
    OutcomeUnknown,
    Presentation,
    Preview,
    TextBlock,
    ToolContext,
    ToolFailure,
    tool,
)
from turngate.domain.tools.context import NoWorkspaceError
from turngate.domain.tools.presentation import default_presentation
from turngate.domain.tools.tool import ProcessConfinement
from turngate.toolkits import scripts
from turngate.toolkits.confinement import machine
from turngate.toolkits.confinement.machine import UnconfinedError
from turngate.toolkits.confinement.sandbox import Sandbox
from turngate.toolkits.edits import Params
from turngate.toolkits.processes.live_output import LiveOutput
from turngate.toolkits.processes.process_group import ProcessGroup

MAX_OUTPUT_BYTES = 64 * 1024
MAX_TIMEOUT_SECONDS = 3600

_KEPT_VARIABLES = re.compile(r"PATH|HOME|LANG|LC_[A-Z]+|TERM|TMPDIR|USER")
_GIT_SETTINGS = {
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "safe.bareRepository",
    "GIT_CONFIG_VALUE_0": "explicit",
    "GIT_CONFIG_KEY_1": "protocol.file.allow",
    "GIT_CONFIG_VALUE_1": "never",
}
"""Git takes no directory that the file tools wrote for a repository: neither one with ``HEAD``, ``objects`` and ``refs`` by
itself (git-config(1), Git 2.38), nor ``./origin`` as the remote of ``git push origin`` where no remote has that name. It would
run what the directory's ``config`` says, and no rule sees that: ``cd sub && git status``."""
_SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


class CommandNotStarted(ToolFailure):
    """The command could not be started at all; nothing ran."""

    reason: str


def _without_nul(command: str) -> str:
    if "\0" in command:
        raise ValueError("a command must not hold NUL characters")
    return command


class BashParams(Params):
    """The command, exactly as bash gets it."""

    command: Annotated[str, AfterValidator(_without_nul)] = Field(
        min_length=1, description="Given to `bash -c` as it is."
    )
    timeout_seconds: int = Field(
        default=120, ge=1, le=MAX_TIMEOUT_SECONDS, description="The command is killed after it."
    )
    network: bool = Field(
        default=False, description="Let the command reach other machines. A person must approve each such call."
    )


class CommandResult(BaseModel):
    """How the command ended. ``output``: stdout and stderr in order, at most 64 KiB; ``output_bytes`` counts all of it."""

    exit_code: int
    output: str
    output_bytes: int
    truncated: bool
    duration_seconds: float


def scrubbed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the few variables a command needs, and none whose name suggests a secret."""
    return {
        name: value
        for name, value in environment.items()
        if _KEPT_VARIABLES.fullmatch(name) and not _SECRET_NAMES.search(name)
    }


def _preview_command(params: BashParams, workspace: Path | None) -> Preview:
    """Return the command, with the scripts that it names; it depends on the very bytes that are shown of them."""
    if workspace is None:
        return Preview.command(*_argv(params))
    with tempfile.TemporaryDirectory() as copies:
        named = scripts.find(params.command, workspace, Path(copies).resolve())
        text = f"bash -c\n{scripts.indented(params.command)}{named.texts()}"
    depends_on: JsonValue = {"scripts": {**named.stamps}} if named.files else None
    if not named.certain:
        return Preview(kind="warned", text=f"{scripts.UNCERTAIN}\n\n{text}", depends_on=depends_on)
    return Preview(kind="text", text=text, depends_on=depends_on) if named.files else Preview.command(*_argv(params))


def _argv(params: BashParams) -> tuple[str, str, str]:
    return "bash", "-c", params.command


def _confinement(params: BashParams) -> ProcessConfinement:
    return machine.current().described(network_asked=params.network)


def _present(params: BashParams, result: Ok | Failure) -> Presentation:
    command = CommandBlock(argv=_argv(params))
    if isinstance(result, Failure):
        return command, *default_presentation(result)
    exit_code = result.value["exit_code"]
    words = f"exit code {exit_code} after {result.value['duration_seconds']} s"
    ended = TextBlock(text=words, tone="warning" if exit_code else "plain")
    output = result.value["output"]
    return (command, ended, TextBlock(text=str(output))) if output else (command, ended)


@tool(
    effect="once",
    ask=True,
    failures=[CommandNotStarted],
    timeout=timedelta(seconds=MAX_TIMEOUT_SECONDS + 60),
    check_with="Look at its output until it was stopped, and at what the command changes in the workspace.",
    preview=_preview_command,
    precondition="preview",
    precondition_keeps_fresh=False,
    present=_present,
    confinement=_confinement,
)
async def bash(params: BashParams, ctx: ToolContext) -> CommandResult:
    """Run a command with `bash -c` in the workspace. Output is stdout and stderr together; a non-zero exit is a result.

    There is no stdin, and no network unless the call asks for it. What still runs when the command ends is killed.
    """
    try:
        workspace = ctx.require_workspace()
    except NoWorkspaceError as none:
        raise CommandNotStarted(reason=none.message) from none
    async with machine.temporary_directory() as temporary, machine.temporary_directory() as copies:
        sandbox = Sandbox(workspace=workspace, temporary=temporary, network=params.network)
        return await _run(params, ctx, await _with_approved_scripts(sandbox, params, ctx, copies.resolve()))


async def _with_approved_scripts(sandbox: Sandbox, params: BashParams, ctx: ToolContext, copies: Path) -> Sandbox:
    """Return the sandbox with copies of the scripts over them, where that can be, if they are what a person approved.

    Raises CommandNotStarted: they aren't, any more.
    """
    if ctx.precondition is None:
        return sandbox
    is_mounted = machine.current().mounts_copies(copies)
    named = await asyncio.to_thread(
        scripts.find, params.command, ctx.require_workspace(), copies if is_mounted else None
    )
    approved = (json.loads(ctx.precondition) or {}).get("scripts", {})
    current = named.stamps
    changed = sorted(name for name in approved.keys() | current if approved.get(name) != current.get(name))
    if changed:
        raise CommandNotStarted(
            reason=f"{', '.join(changed)} changed after the call was approved, so nothing ran. Send the call again: a person is "
            "asked about it as it is now."
        )
    mounted = {script.place.parts: script.copy for script in named.files if script.copy is not None}
    return replace(sandbox, copies=mounted, readable=(copies,)) if mounted else sandbox


async def _run(params: BashParams, ctx: ToolContext, sandbox: Sandbox) -> CommandResult:
    output = LiveOutput(MAX_OUTPUT_BYTES // 2, ctx.emit)
    started = time.monotonic()
    try:
        environment = {**scrubbed_environment(os.environ), **_GIT_SETTINGS}
        command = machine.current().command(_argv(params), sandbox, environment)
        group = ProcessGroup(command, output)
    except (OSError, UnconfinedError) as error:
        raise CommandNotStarted(reason=f"bash could not be started: {error}") from error
    try:
        try:
            timed_out = not await _ends_within(group, params.timeout_seconds)
        finally:
            try:
                exit_code = await group.end()
            finally:
                output.finish()
    except asyncio.CancelledError:
        ctx.partial(output.text())
        raise
    if timed_out:
        ctx.partial(output.text())
        raise OutcomeUnknown(
            f"The command did not end within {params.timeout_seconds} s and was killed. What it had done until then stays done."
        )
    return CommandResult(
        exit_code=exit_code,
        output=output.text(),
        output_bytes=output.total,
        truncated=output.truncated,
        duration_seconds=round(time.monotonic() - started, 3),
    )


async def _ends_within(group: ProcessGroup, seconds: float) -> bool:
    in_time = await group.exits_within(seconds)
    if not in_time:
        group.ask_to_end()
    # A fifth of a second for last words of a command that got the signal to stop, or of its children in the background.
    await group.drained()
    return in_time
