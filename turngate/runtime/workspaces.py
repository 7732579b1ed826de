"""The directories that runs may work in: those that the deployment lists and what is below them, never Turngate's own.

The API judges a workspace before it starts a run, and the door again before each call: a path can lead elsewhere by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turngate.domain.policy.protected import place_around
from turngate.toolkits.confinement import descriptors
from turngate.toolkits.confinement.sandbox import is_repository
from turngate.toolkits.confinement.system_paths import is_below
from turngate.toolkits.private_files import PRIVATE_FILES, PrivateFiles

_KERNELS: Final = ("/proc", "/sys")
"""File systems that show processes and devices, the worker's own memory and environment among them."""


@dataclass(frozen=True, kw_only=True)
class Workspaces:
    """``roots``: runs may work in these and below; empty: in no directory. ``private``: Turngate's own files."""

    roots: tuple[Path, ...] = ()
    private: PrivateFiles = PRIVATE_FILES

    def refusal(self, workspace: str) -> str | None:
        """Return why no run may work in a directory, with the fix; None: it may. Judged by its real path.

        Blocking: looks at the file system.
        """
        if not self.roots:
            return (
                f"no run may work in {workspace!r}, because no directory is listed for workspaces: set TURNGATE_WORKSPACES, "
                "for the API and the workers"
            )
        real = Path(os.path.realpath(workspace))
        if not is_below(real, map(os.path.realpath, self.roots)):
            listed = ", ".join(map(str, self.roots))
            return (
                f"the workspace {workspace!r} lies outside the directories that runs may work in: name one in {listed}, or "
                "add it to TURNGATE_WORKSPACES, for the API and the workers"
            )
        if self.private.holds(real) or self.private.lie_in(real):
            return (
                f"the workspace {workspace!r} is, holds or lies in Turngate's data directory, or holds its database: name "
                "another directory, or keep the data elsewhere (TURNGATE_DATA_DIR)"
            )
        if (place := place_around(real)) is not None:
            return (
                f"the workspace {workspace!r} is or lies in a directory {place!r}, and other programs obey what is written "
                "there: name a directory outside of it"
            )
        if (repository := next(filter(is_repository, real.parents), None)) is not None:
            return (
                f"the workspace {workspace!r} lies in the repository '{repository}', whose files git obeys: name a directory "
                "outside of it"
            )
        if _is_kernels(real):
            return f"the workspace {workspace!r} shows the system's processes or devices: name another directory"
        try:
            descriptors.real_path(str(Path(workspace).absolute()), descriptors.inodes([*map(str, self.roots)]))
        except descriptors.LinkError:
            return (
                f"a part of the workspace {workspace!r} is a link, and no link is followed where agents write: name the "
                "directory that it leads to"
            )
        except OSError:  # it is not there: what opens it says so
            return None
        return None


def leads_below(directory: str, roots: Iterable[str]) -> bool:
    """Tell whether a directory is one of these or lies below one, by the real paths. Blocking."""
    return is_below(os.path.realpath(directory), map(os.path.realpath, roots))


ANYWHERE: Final = Workspaces(roots=(Path("/"),))
"""For programs that start every run themselves, such as tests."""


def _is_kernels(real: Path) -> bool:
    # By device too: such a file system may be mounted again elsewhere.
    with suppress(OSError):
        device, ordinary = real.stat().st_dev, Path("/").stat().st_dev
        return device != ordinary and device in [Path(each).stat().st_dev for each in _KERNELS if Path(each).is_dir()]
    return False
