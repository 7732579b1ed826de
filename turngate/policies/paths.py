"""Where a path leads, found as our tools find it (``turngate.toolkits.workspace``): from the real workspace on."""

from __future__ import annotations

import os
import posixpath

from turngate.domain.policy.facts import ResolvedPath

_UNKNOWN = ResolvedPath(lexical=None, real=None)


def resolve_path(text: str, workspace: str | None) -> ResolvedPath:
    """Return where ``text`` leads; relative paths start at the workspace, and are unknown without one.

    Looks at the disk, never raises. Parts that do not exist are taken literally, ``~`` is an ordinary name, an empty text
    is the workspace. NUL and unpaired surrogates lead nowhere: unknown.
    """
    if "\0" in text:
        return _UNKNOWN
    try:
        text.encode()
        workspace = workspace or ("/" if text.startswith("/") else "")
        if not workspace.startswith("/"):
            return _UNKNOWN
        lexical = posixpath.normpath(posixpath.join(workspace, text))
        real = os.path.realpath(posixpath.join(os.path.realpath(workspace), text))
    except (OSError, ValueError):
        return _UNKNOWN
    return ResolvedPath(lexical=_single_slash(lexical), real=_single_slash(real))


def _single_slash(path: str) -> str:
    """POSIX lets two leading slashes mean something else, and normpath keeps them; on Linux they mean one."""
    return "/" + path.lstrip("/")
