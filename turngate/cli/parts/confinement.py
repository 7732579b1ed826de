"""What the tools of this process can reach: their confinement, the workspaces, and Turngate's own files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from turngate.domain.errors import ConfigurationError
from turngate.runtime.app_loader import LoadedApp, load_app
from turngate.runtime.import_guard import ImportGuard
from turngate.runtime.locations import own_state
from turngate.runtime.settings import Settings
from turngate.runtime.workspaces import Workspaces
from turngate.toolkits.confinement import machine
from turngate.toolkits.http_client.safe_connect import open_networks
from turngate.toolkits.loaded_files import LOADED_FILES
from turngate.toolkits.mcp import SERVER_PLACES
from turngate.toolkits.private_files import PRIVATE_FILES

logger = logging.getLogger(__name__)


def workspaces_of(settings: Settings) -> Workspaces:
    """Return where runs may work, and keep Turngate's own files from this process's file tools."""
    PRIVATE_FILES.add(
        directories=own_directories(settings), databases=settings.database_files, files=signing_files(settings)
    )
    return Workspaces(roots=settings.workspaces or ())


def load_confined(settings: Settings, target: str) -> LoadedApp:
    """Load an app. A server whose tools it reads for that is confined as it is when they are called.

    Raises as :func:`~turngate.runtime.app_loader.load_app`.
    """
    machine.find_when_needed(partial(tool_confinement, settings))
    return load_app(target)


def load_to_serve(settings: Settings, target: str) -> LoadedApp:
    """Load an app as :func:`load_confined` does. From then on, this process imports nothing that a run may have changed since."""
    loaded = load_confined(settings, target)
    places = tuple(each.resolve() for each in (*(settings.workspaces or ()), *sorted(SERVER_PLACES)))
    ImportGuard(places=places, since=time.time()).watch_imports()
    return loaded


def confine_tools(settings: Settings, app_files: Iterable[Path] = ()) -> None:
    """Confine the processes of this process's tools, and keep other processes of its user from its memory.

    No tool may change what this process runs from. Warns when this machine can't confine them.

    Args:
        settings: of this process.
        app_files: what its app was loaded from besides modules.
    """
    machine.keep_memory_private()
    confinement = tool_confinement(settings)
    LOADED_FILES.begin(app_files, confinement.agents_write)
    machine.use(replace(confinement, loaded=LOADED_FILES))
    if confinement.backend is None:
        logger.warning("%s", unconfined_warning(confinement))


def tool_confinement(settings: Settings) -> machine.Confinement:
    """Find out how this machine confines tools' processes, as the settings want it."""
    files = (*signing_files(settings), *settings.database_files)
    wanted = machine.Confinement(
        hidden=(*own_directories(settings), *files),
        readable=tuple(settings.tool_paths),
        networks=open_networks(settings.tool_networks),
        agents_write=(*(settings.workspaces or ()), *sorted(SERVER_PLACES)),
        tool_user=settings.tool_user,
        allow_unconfined=settings.allow_unconfined,
    )
    with suppress(ConfigurationError):
        if os.access(own_state(), os.W_OK):
            wanted = replace(wanted, notes=own_state() / "held")
    return machine.find(wanted)


def own_directories(settings: Settings) -> list[Path]:
    """Return the data directory, and that of all this user's stacks and the links to them: no tool may read or change these.

    The second is created, because what is not there can't be hidden; where that fails, a tool can't create it either.
    """
    directories = [settings.data_dir]
    with suppress(OSError, ConfigurationError):
        stacks = own_state()
        stacks.mkdir(mode=0o700, parents=True, exist_ok=True)
        directories.append(stacks)
    return directories


def unconfined_warning(confinement: machine.Confinement) -> str:
    """Say that tools' processes are not confined here, what follows, and what to do."""
    follows = "they are not started without --allow-unconfined"
    if confinement.allow_unconfined:
        follows = "they run unconfined, as --allow-unconfined says, and each call asks a person"
    return (
        f"this machine can't confine the processes of tools such as bash, so {follows} ({'; '.join(confinement.why)}). "
        "Install bubblewrap, or use Linux 6.7 or newer, or set TURNGATE_TOOL_USER to a user of their own"
    )


def signing_files(settings: Settings) -> list[Path]:
    """Return the files that the log is signed with and into, which no tool may read or change."""
    return [path for path in (settings.audit_key_file, settings.audit_heads) if path is not None]
