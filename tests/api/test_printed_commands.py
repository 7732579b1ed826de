"""The commands that `explain`, `show` and other commands print, typed as they are printed, each where it was printed."""

from __future__ import annotations

import asyncio
import html
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.api_server import Api, api_on
from support.engine.stack import Cast, call, says, stack, until
from support.project.printed_commands import Printed, in_code, problem_of
from temporalio.client import Client
from typer.main import get_command
from typer.testing import CliRunner

from turngate import Limits, tool
from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli import stores
from turngate.cli.api_link import ApiLink
from turngate.cli.led_commands import led, led_text
from turngate.cli.main import app
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ModelError
from turngate.domain.runs.failure_classes import MEANINGS
from turngate.models.port import ModelRequest
from turngate.runtime.embedded_temporal import EmbeddedTemporal, temporal_binary
from turngate.runtime.locations import RunningStack
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.store.tables import runs as runs_table

WORKER = "turngate worker APP"
"""It runs until someone stops it, so it is parsed, not run."""
FINDINGS = frozenset({"turngate doctor", "turngate models"})
"""Commands that report what they find, with exit code 1 if something is wrong. They found the machine of the tests."""
LOOKS = (*FINDINGS, "turngate logs", "turngate show", "temporal workflow show")
"""Commands that leave a run as it is."""
COMMAND = re.compile(r"^ *(?:[a-z ]+: +)?((?:turngate|temporal) .+)$", re.MULTILINE)


@tool(effect="read", ask=False)
async def look() -> str:
    """Look."""
    return "seen"


@tool(effect="once", ask=True)
async def pay() -> str:
    """Pay."""
    return "paid"


class Words:
    """Does what the newest message of a person says, and counts whether its provider is down.

    ``fail``: a step, then a refusal. ``away``: no answer, again and again. ``pay``: a call of ``pay``. Else: an answer.
    """

    name = "scripted:test"

    def __init__(self, *, is_down: bool) -> None:
        self.is_down = is_down

    async def generate(self, request: ModelRequest) -> ModelResponse:
        at = max(place for place, message in enumerate(request.messages) if message.role == "user")
        word, is_first = request.messages[at].text, at == len(request.messages) - 1
        match word:
            case "fail" if is_first:
                return says(call("look", "{}"))
            case "fail" if self.is_down:
                raise ModelError("no", error_class="authentication", retryable=False)
            case "away" if self.is_down:
                raise ModelError("away", error_class="unreachable", retryable=True, retry_after_seconds=60)
            case "pay" if is_first:
                return says(call("pay", "{}"))
        return says("Done.")

    async def aclose(self) -> None:
        return None


@dataclass(frozen=True)
class Typed:
    code: int
    output: str

    @property
    def commands(self) -> list[str]:
        """The commands that it printed, each on a line of its own."""
        return COMMAND.findall(self.output)


@dataclass
class Desk:
    """An API, the model of its agent, and a terminal that finds both by the option ``--data-dir`` alone."""

    api: Api
    model: Words
    directory: Path
    gateway: Gateway
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def quoted(self) -> str:
        return shlex.quote(str(self.directory))

    async def type(self, command: str) -> Typed:
        """Type a command into a shell."""
        return await asyncio.to_thread(self._shell, shlex.split(command))

    def _shell(self, words: list[str]) -> Typed:
        if words[0] == "temporal":
            path = f"{temporal_binary().parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
            return Typed(done.returncode, done.stdout + done.stderr)
        answer = CliRunner().invoke(app, words[1:], env={"COLUMNS": "400", "NO_COLOR": "1", **self.environment})
        return Typed(answer.exit_code, answer.output)

    async def explained(self, run_id: str) -> list[str]:
        """Return the commands of an explanation, as the terminal prints them."""
        printed = await self.type(f"turngate explain {run_id} --data-dir {self.quoted}")
        assert printed.code == 0, printed.output
        return printed.commands

    async def run(self, word: str) -> runs.Run:
        run = await self.api.start(word)
        async with self.api.stack.database.read() as conn:
            stored = await runs.get(conn, run["id"])
        assert stored is not None
        return stored

    async def change(self, run: runs.Run, **columns: Any) -> None:
        await self.api.stack.change(runs_table, {"id": run.id}, **columns)

    async def ended(self, word: str, **columns: Any) -> runs.Run:
        """Return a run that failed while the model was down, with these columns changed."""
        self.model.is_down = True
        run = await self.run(word)
        await self.api.stack.ended(run)
        self.model.is_down = False
        if columns:
            await self.change(run, **columns)
        return run


@pytest.fixture(scope="module")
async def desk(
    client: Client, temporal: EmbeddedTemporal, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Desk]:
    """One stack for all, in a directory whose name a shell would take apart."""
    directory = tmp_path_factory.mktemp("the desk")
    database = Database(f"sqlite:///{shutil.copy(sqlite_template, directory / 'turngate.db')}")
    (directory / "rules.toml").write_text('[[rule]]\nname = "a"\nverdict = "ask"\ntools = ["pay"]\n')
    model = Words(is_down=True)
    models = Cast(test=model, other=Words(is_down=False))
    limits = Limits(model_retry=timedelta(minutes=5))
    async with (
        stack(client, database, look, pay, model=models, limits=limits) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        RunningStack(temporal_address=temporal.address, api_url=api.url).write(directory)
        await stores.ensure_cli_token(database, directory)
        yield Desk(api, model, directory, Gateway(client))
    await database.close()


def filled(command: str, desk: Desk) -> str:
    """Return a command with what a user puts instead of the dots and of the words in capitals."""
    for place, text in {
        '"…"': "on",
        "PROVIDER:NAME": "scripted:other",
        " MODEL": " scripted:other",
        " APP": " turngate.cli.default_app:app",
        " FILE": f" {shlex.quote(str(desk.directory / 'rules.toml'))}",
    }.items():
        command = command.replace(place, text)
    return command


def shape_of(command: str) -> str:
    """Return a command without its ids."""
    return re.sub(r"(run|conv)_[0-9a-f]+", r"\1", command)


ENDINGS: dict[str, dict[str, Any]] = {
    **{error_class: {"error_class": error_class} for error_class in MEANINGS},
    "interrupted": {"status": "interrupted"},
    "completed": {"status": "completed"},
    "dry run": {"replay_of_run_id": ""},
    "sub-agent": {"parent_run_id": "", "parent_tool_call_id": "call"},
}
"""Ending → what the store has of it. "" is another run of the test."""


async def test_every_command_for_a_run_that_ended_works(desk: Desk) -> None:
    """Each command that is proposed for a failed, interrupted or completed run works, once its cause is gone."""
    other, typed = await desk.ended("hello"), set[str]()
    first = await desk.ended("fail")
    for columns in ENDINGS.values():
        ending = {name: value or other.id for name, value in columns.items()}
        plain = {"status": "failed", "replay_of_run_id": None, "parent_run_id": None, "parent_tool_call_id": None}
        await desk.change(first, **{**plain, **ending})
        for command in await desk.explained(first.id):
            if shape_of(command) in typed:
                continue
            typed.add(shape_of(command))
            run = first if command.startswith(LOOKS) else await desk.ended("fail", **ending)
            own = command.replace(first.id, run.id).replace(first.conversation_id, run.conversation_id)
            answer = await desk.type(filled(own, desk))
            allowed = {0, 1} if command.startswith(tuple(FINDINGS)) else {0}
            assert answer.code in allowed, (columns, command, answer.output)
    names = {" ".join(each.split()[:2]) for each in typed}
    assert {"turngate retry", "turngate run", "turngate fork", "turngate doctor", "temporal workflow"} <= names


async def test_a_conversation_too_long_continues_with_another_model(desk: Desk) -> None:
    """It is retried with a model that takes more; a new run would know nothing of the conversation."""
    run = await desk.ended("fail", error_class="context_length")
    [retry] = [each for each in await desk.explained(run.id) if "PROVIDER:NAME" in each]
    assert retry.startswith("turngate retry ")
    answer = await desk.type(filled(retry, desk))
    assert answer.code == 0, answer.output


async def waits(desk: Desk, run: runs.Run, start: str) -> str:
    """Return the command that is proposed for a live run, once it begins like this."""

    async def look() -> str | None:
        return next((each for each in await desk.explained(run.id) if each.startswith(start)), None)

    return await until(look, f"a command that starts with {start}")


async def test_a_request_is_decided_by_the_commands_that_are_printed(desk: Desk) -> None:
    """`explain` leads to `show`, which prints the commands that approve and reject."""
    run = await desk.run("pay")
    answer = await desk.type(await waits(desk, run, "turngate show "))
    assert answer.code == 0, answer.output
    approve, reject = answer.commands
    answer = await desk.type(approve)
    assert (answer.code, "approved" in answer.output) == (0, True), answer.output
    await desk.api.stack.ended(run)
    assert problem_of(Printed("show", reject)) is None


async def test_a_live_run_is_steered_by_the_commands_that_are_printed(desk: Desk) -> None:
    """Resume a run that is paused, switch the model of one whose model is away, interrupt one: each as printed."""
    run = await desk.run("pay")
    paused = await desk.type(f"turngate pause {run.id} --data-dir {desk.quoted}")
    assert paused.commands == [await waits(desk, run, "turngate resume ")]
    assert (await desk.type(paused.commands[0])).code == 0
    stopped = await desk.type(f"turngate interrupt {run.id} --data-dir {desk.quoted}")
    assert stopped.code == 0
    await desk.api.stack.ended(run)
    desk.model.is_down = True
    run = await desk.run("away")
    assert (await desk.type(filled(await waits(desk, run, "turngate model "), desk))).code == 0
    await desk.api.stack.ended(run)


async def test_a_command_gets_only_options_that_it_has(desk: Desk) -> None:
    """`worker`, `doctor` and `recover` know no --url, so `explain --url` prints them without it."""
    run = await desk.ended("fail", error_class="configuration")
    token = (desk.directory / "token").read_text().strip()
    words = ["explain", run.id, "--url", desk.api.url]
    answer = await asyncio.to_thread(CliRunner().invoke, app, words, env={"TURNGATE_TOKEN": token, "COLUMNS": "400"})
    commands = COMMAND.findall(answer.output)
    assert {f"turngate retry --url {desk.api.url} {run.id}", "turngate doctor APP"} <= set(commands)
    assert not [each for each in commands if problem_of(Printed("explain", filled(each, desk)))]
    assert problem_of(Printed("explain", WORKER)) is None


async def on_page(desk: Desk, path: str) -> list[str]:
    """Return the commands that a page prints, as a person copies them from it."""
    pages = create_app(database=desk.api.stack.database, gateway=desk.gateway, settings=ApiSettings())
    known = {"cookies": desk.api.operator.cookies, "headers": {"Accept": "text/html"}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(pages), base_url="http://127.0.0.1", **known) as browser:
        page = await browser.get(path)
    assert page.status_code == 200, page.text
    codes = re.findall(r"<code>(.*?)</code>", page.text)
    texts = [html.unescape(re.sub(r"<[^>]*>", "", each)) for each in codes]
    return [each for each in texts if each.startswith("turngate ")]


async def is_printed(wanted: str, *, by: Callable[[], Awaitable[list[str]]]) -> None:
    """Wait until a command is printed: what looks at Temporal gives up soon on a busy machine."""

    async def look() -> bool | None:
        return wanted in await by() or None

    await until(look, wanted)


async def test_a_lost_workflow_is_recovered_by_the_command_of_status_and_pages(desk: Desk, client: Client) -> None:
    """`status`, `explain`, the page Health and the run's page print the same command, which works as the terminal prints it.

    It is of this machine, not of the API, and gets only the options that it has.
    """
    run = await desk.run("pay")
    await desk.api.stack.request(run)
    await client.get_workflow_handle(run.id).terminate()
    await desk.change(run, created_at="2026-01-01T00:00:00.000000+00:00")
    recover = f"turngate recover {run.id}"
    typed = f"turngate recover --data-dir {desk.quoted} {run.id}"

    async def status() -> list[str]:
        return (await desk.type(f"turngate status --data-dir {desk.quoted}")).commands

    await is_printed(typed, by=status)
    assert await waits(desk, run, "turngate recover ") == typed
    for path in ("/health", f"/runs/{run.id}"):
        await is_printed(recover, by=partial(on_page, desk, path))
    answer = await desk.type(typed)
    assert (answer.code, "recovered" in answer.output) == (0, True), answer.output


async def test_a_model_that_is_away_is_explained_by_the_command_of_status(desk: Desk) -> None:
    """`status` and the page Health lead to `explain`, which works as it is printed."""
    desk.model.is_down = True
    run = await desk.run("away")
    explain = f"turngate explain {run.id}"
    typed = f"turngate explain --data-dir {desk.quoted} {run.id}"

    async def status() -> list[str]:
        return (await desk.type(f"turngate status --data-dir {desk.quoted}")).commands

    await is_printed(typed, by=status)
    await is_printed(explain, by=partial(on_page, desk, "/health"))
    assert (await desk.type(typed)).code == 0
    desk.model.is_down = False
    assert (await desk.type(f"turngate interrupt {run.id} --data-dir {desk.quoted}")).code == 0
    await desk.api.stack.ended(run)


REMEDIES = "approvals_api/runs/remedies.py"
STARTS = ("turngate up", "turngate worker", "turngate api")
"""Commands that run until someone stops them."""
INLINE = re.compile(r"`(turngate [^`]+)`")


def is_led(command: str, directory: str) -> bool:
    """Tell whether a command can be typed as it is, and has the data directory if it knows that option."""
    assert problem_of(Printed("doctor", command)) is None, command
    path = command.partition(" --")[0]
    knows = problem_of(Printed("doctor", command.replace(f" --data-dir {directory}", "") + " --data-dir D")) is None
    return not knows or f"{path} --data-dir {directory}" in command


async def test_the_doctors_commands_lead_to_the_directory_that_it_examined(desk: Desk, tmp_path: Path) -> None:
    """Before there is a store, and of a stack that runs elsewhere: each inline command, and those that end are typed."""
    empty = shlex.quote(str(tmp_path / "not there"))
    typed = list[str]()
    for directory in (empty, desk.quoted):
        answer = await desk.type(f"turngate doctor --data-dir {directory} --port 1")
        commands = INLINE.findall(answer.output)
        assert commands, answer.output
        for command in commands:
            assert is_led(command, directory), command
            if not command.startswith(STARTS) and "keygen" not in command:
                typed.append(command)
                assert (await desk.type(filled(command, desk))).code in {0, 1}
        if directory == empty:
            assert f"turngate up --data-dir {empty}" in commands


def test_every_fix_of_status_is_led_to_its_stack(tmp_path: Path) -> None:
    """Of every cause that a check can name: its command, and those within the words of its fix."""
    root, link = get_command(app), ApiLink(url="u", token="t", data_dir=tmp_path, data_dir_is_option=True)
    commands = [each.command for each in in_code("approvals_api/health.py", REMEDIES)]
    assert len(commands) > 20
    for command in commands:
        words = led(command, link, root)
        assert problem_of(Printed("status", words)) is None, words
        assert f" --data-dir {tmp_path}" in words or problem_of(Printed("status", f"{command} --data-dir D")), words
    assert (
        led_text("see `turngate models --probe`.", link, root)
        == f"see `turngate models --data-dir {tmp_path} --probe`."
    )
    assert led("temporal workflow show", link, root) == "temporal workflow show"


async def test_the_commands_of_a_failed_runs_page_work_as_a_person_copies_them(desk: Desk) -> None:
    """In a terminal whose TURNGATE_DATA_DIR names the stack: retry, fork, run, doctor and the log of each error."""
    at_stack = replace(desk, environment={"TURNGATE_DATA_DIR": str(desk.directory)})
    names = set[str]()
    run = await desk.ended("fail")
    for place, command in enumerate(await on_page(desk, f"/runs/{run.id}")):
        names.add(" ".join(command.split()[:2]))
        again = await desk.ended("fail")
        commands = await on_page(desk, f"/runs/{again.id}")
        answer = await at_stack.type(filled(commands[place], desk))
        allowed = {0, 1} if command.startswith(tuple(FINDINGS)) else {0}
        assert answer.code in allowed, (command, answer.output)
    assert {"turngate retry", "turngate fork", "turngate run", "turngate logs"} <= names
