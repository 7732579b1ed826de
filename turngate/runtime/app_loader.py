"""Load a builder's app from ``module:attribute``, and check all of it before anything starts."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

import svcs

from turngate.domain.agents.app import Agent, App
from turngate.domain.errors import ConfigurationError, MissingServicesError
from turngate.domain.policy.policy import Policy, parse_policy
from turngate.store import agents
from turngate.store.database import Database
from turngate.store.policy import policies


@dataclass(frozen=True, kw_only=True)
class LoadedApp:
    """An app that was checked: its policy is loaded, and every service that its tools need is registered."""

    app: App
    agents: dict[str, Agent]
    policy: Policy
    services: svcs.Registry
    base: Path
    """Directory of the app's module; relative paths in the app (policy, scripts) start here."""
    policy_file: Path | None = None
    """The policy's file, with every symlink resolved; None: the app has its policy as a value, or has none."""


def load_app(target: str) -> LoadedApp:
    """Import ``module:attribute`` (the current directory comes first on the path, as for an ASGI server).

    Raises:
        ConfigurationError: no such module or attribute, not an App, an unreadable policy, a tool whose types no model can
            be shown; the message says the fix.
        MissingServicesError: names each tool and the service its registry lacks.
    """
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigurationError(f"{target!r} is not of the form module:attribute, such as my_app:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise ConfigurationError(
                f"there is no module {module_name!r} in {Path.cwd()} or on PYTHONPATH; "
                "run the command from the directory that holds it, or make one with `turngate init DIR`"
            ) from None
        raise ConfigurationError(f"module {module_name!r} imports {error.name!r}, which is not installed") from error
    app = getattr(module, attribute, None)
    if app is None:
        apps = [name for name, value in vars(module).items() if isinstance(value, App)]
        hint = f"; it has: {', '.join(apps)}" if apps else "; write `app = App(agents=[…])` in it"
        raise ConfigurationError(f"module {module_name!r} has no attribute {attribute!r}{hint}")
    if not isinstance(app, App):
        raise ConfigurationError(f"{target!r} is a {type(app).__name__}, not a turngate.App")
    base = Path(module.__file__).resolve().parent if module.__file__ else Path.cwd()
    return check_app(app, base=base)


def check_app(app: App, *, base: Path) -> LoadedApp:
    """Return the app with its policy read, its services and its tools' schemas checked. Raises as :func:`load_app`."""
    services = app.services or svcs.Registry()
    missing = [
        (tool.name, getattr(service, "__name__", str(service)))
        for agent in app.all_agents
        for tool in agent.toolkit
        for service in tool.services
        if service not in services
    ]
    if missing:
        raise MissingServicesError(sorted(set(missing)))
    for agent in app.all_agents:
        for tool in agent.toolkit:
            _ = tool.manifest  # a type without a JSON Schema would otherwise end the first run that offers it
    return LoadedApp(
        app=app,
        agents={agent.name: agent for agent in app.all_agents},
        policy=_policy(app, base),
        policy_file=None if app.policy is None or isinstance(app.policy, Policy) else (base / app.policy).resolve(),
        services=services,
        base=base,
    )


def _policy(app: App, base: Path) -> Policy:
    if app.policy is None:
        return Policy()
    if isinstance(app.policy, Policy):
        return app.policy
    path = base / app.policy
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"policy file {str(path)!r} cannot be read: {error.strerror}") from None
    return parse_policy(text, source=repr(str(path)))


async def publish_agents(app: LoadedApp, database: Database, *, task_queue: str) -> None:
    """Store for the API which agents this worker runs, and under which rules."""
    async with database.write() as conn:
        await agents.publish(conn, app.app, task_queue=task_queue)
        await policies.publish(
            conn,
            task_queue=task_queue,
            policy=app.policy,
            file="" if app.policy_file is None else str(app.policy_file),
            tools=app.app.known_tools,
        )
