"""Load a builder's app from ``module:attribute``, and check all of it before anything starts."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from turngate.domain.agents.app import Agent, App
from turngate.domain.agents.model_profiles import ToolChoice
from turngate.domain.errors import ConfigurationError, MissingServicesError
from turngate.domain.policy.policy import Policy
from turngate.domain.text.suggestions import did_you_mean
from turngate.runtime.app_errors import load_error, module_error, shown_path
from turngate.runtime.policy_files import read_policy
from turngate.runtime.services import svcs
from turngate.store import agents
from turngate.store.access import people
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

    Once the app is loaded, that directory comes last: a file that a run has made there isn't taken for a library that is imported
    later.

    Raises:
        ConfigurationError: no such module or attribute, an error in the module, not an App, an unreadable policy, a tool whose
            types no model can be shown; the message has the builder's own lines and the fix.
        MissingServicesError: names each tool and the service its registry lacks.
    """
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute or "/" in target or module_name.endswith(".py"):
        raise ConfigurationError(f"{target!r} is not of the form module:attribute, such as {_example(target)}")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise module_error(target, module_name, error) from error
    except (Exception, SystemExit) as error:
        raise load_error(target, error) from error
    sys.path.remove(here)
    sys.path.append(here)
    app = getattr(module, attribute, None)
    if app is None:
        apps = [name for name, value in vars(module).items() if isinstance(value, App)]
        hint = f"; its apps: {', '.join(apps)}" if apps else "; write `app = App(agents=[…])` in it"
        raise ConfigurationError(f"module {module_name!r} has no attribute {attribute!r}{hint}")
    if not isinstance(app, App):
        raise ConfigurationError(f"{target!r} is {_described(app)}, not a turngate.App{_fix(app, attribute)}")
    base = Path(module.__file__).resolve().parent if module.__file__ else Path.cwd()
    return check_app(app, base=base)


def _example(target: str) -> str:
    """Return how a target that names a file would be written."""
    path, _colon, attribute = target.partition(":")
    module = path.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
    here = Path(*module.split(".")).with_suffix(".py") if module else None
    return f"{module}:{attribute or 'app'}" if here is not None and here.is_file() else "my_app:app"


def _described(value: object) -> str:
    if inspect.isfunction(value):
        return f"a function ({Path(value.__code__.co_filename).name}, line {value.__code__.co_firstlineno})"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _fix(value: object, attribute: str) -> str:
    if isinstance(value, Agent):
        return f": write app = App(agents=[{attribute}])"
    if callable(value):
        return f": call it in the module, and name its result: app = {attribute}()"
    return ": write app = App(agents=[…])"


def check_app(app: App, *, base: Path) -> LoadedApp:
    """Return the app with its policy read, its services and its tools' schemas checked. Raises as :func:`load_app`."""
    if app.services is not None and not isinstance(app.services, svcs.Registry):
        raise ConfigurationError(
            f"the app's services are a {type(app.services).__name__}, not a svcs.Registry: registry = svcs.Registry(), then "
            "registry.register_value(Type, value), and App(services=registry)"
        )
    services = app.services or svcs.Registry()
    missing = {
        (tool.name, getattr(service, "__name__", str(service)), str(tool.declared_at or ""))
        for agent in app.all_agents
        for tool in agent.toolkit
        for service in tool.services
        if service not in services
    }
    if missing:
        raise MissingServicesError(sorted(missing))
    for agent in app.all_agents:
        for tool in agent.toolkit:
            _ = tool.manifest  # a type without a JSON Schema would otherwise end the first run that offers it
        _require_chosen_tool(agent)
    policy, policy_file = Policy(), None
    if isinstance(app.policy, Policy):
        policy = app.policy
    elif app.policy is not None:
        policy, policy_file = read_policy(Path(shown_path(str(base / app.policy)))), (base / app.policy).resolve()
    return LoadedApp(
        app=app,
        agents={agent.name: agent for agent in app.all_agents},
        policy=policy,
        policy_file=policy_file,
        services=services,
        base=base,
    )


def _require_chosen_tool(agent: Agent) -> None:
    """Require that the tool which an agent's model has to call is one of its own, and not one that runs at a provider."""
    chosen = agent.options.chosen_tool
    names = [tool.name for tool in agent.toolkit if tool.kind != "provider"]
    if chosen is not None and chosen not in names:
        raise ConfigurationError(
            f"agent {agent.name!r}: tool_choice is {chosen!r}, and it has no such tool to call. Its tools are: "
            f"{', '.join(names) or 'none'}; or say {', '.join(get_args(ToolChoice))}.{did_you_mean(chosen, names)}"
        )


async def by_ids(app: LoadedApp, database: Database) -> LoadedApp:
    """Return the app with rules that name people as the store does (:mod:`turngate.store.access.people`)."""
    if not app.policy.people:
        return app
    async with database.write() as conn:
        return replace(app, policy=await people.policy_by_ids(conn, app.policy))


async def publish_agents(app: LoadedApp, database: Database, *, task_queue: str) -> None:
    """Store for the API which agents this worker runs, and under which rules."""
    app = await by_ids(app, database)
    async with database.write() as conn:
        await agents.publish(conn, app.app, task_queue=task_queue)
        await policies.publish(
            conn,
            task_queue=task_queue,
            policy=app.policy,
            file="" if app.policy_file is None else str(app.policy_file),
            tools=app.app.known_tools,
        )
