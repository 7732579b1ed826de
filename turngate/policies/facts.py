"""The facts of one call for its rules, and which rules of a file count for a run: the same for the engine and for tools."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Any, Final, cast

from pydantic import JsonValue

from turngate.domain.origins.origin import Origins
from turngate.domain.policy.facts import CallFacts, ResolvedPath
from turngate.domain.policy.policy import STORED_RULES_UNREADABLE, Policy, Rule
from turngate.domain.text.json_pointers import AMBIGUOUS, decode_arguments
from turngate.domain.tools.defaults import Defaults
from turngate.policies.shell.parser import read_command


def params_or_arguments(params: Any, raw_input: str) -> Any:
    """Return decoded parameters; or, of a tool that is only known by name, the arguments as JSON, None if they are none."""
    if params is not None:
        return params
    try:
        return decode_arguments(raw_input)
    except ValueError:
        return None


# Where a path leads, found as our tools find it (``turngate.toolkits.workspace``): from the real workspace on.


_UNKNOWN = ResolvedPath(lexical=None, real=None)


class SeenPaths:
    """Where the paths of one call lead: each is looked up once, so that all rules, and the tool after them, mean one place."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str | None], ResolvedPath] = {}

    def __call__(self, text: str, workspace: str | None) -> ResolvedPath:
        """Return where a path leads, or led when it was first looked up."""
        if (text, workspace) not in self._places:
            self._places[text, workspace] = resolve_path(text, workspace)
        return self._places[text, workspace]

    @property
    def real(self) -> dict[str, str]:
        """Path as it is written → its real place, of the paths that were looked up and lead somewhere."""
        return {text: place.real for (text, _workspace), place in self._places.items() if place.real is not None}


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


UNREADABLE: Final = Rule(
    name=STORED_RULES_UNREADABLE,
    verdict="ask",
    tools=["*"],
    reason="The stored rules cannot be read by this worker, so a person is asked. Store them again, or update the worker.",
)

DISTRUSTED: Final = (
    "The policy file lies in this run's workspace, where the agent could change it, so its allow rules do not count: "
    "move the file, or run in another directory."
)


def call_facts(
    raw_input: str,
    workspace: str | None,
    origins: Origins | None = None,
    defaults: Defaults = (),
    seen: SeenPaths | None = None,
) -> CallFacts:
    """Return what rules look at in a call. ``raw_input``: the exact argument text; the rest as of :class:`CallFacts`.

    ``seen``: gets the paths that rules look at.
    """
    try:
        arguments = decode_arguments(raw_input)
    except ValueError:  # the tool's own decoder took what is no strict JSON, such as NaN: no rule is to read it its way
        arguments = cast("JsonValue", AMBIGUOUS)
    return CallFacts(
        arguments=arguments,
        workspace=workspace,
        read_command=read_command,
        resolve_path=seen or SeenPaths(),
        origins=origins,
        defaults=defaults,
    )


def lies_in(policy_file: Path, workspace: str) -> bool:
    """Tell whether a policy file (every symlink followed) lies in a workspace, where an agent could write it.

    Yes, too, for a workspace that leads nowhere that can be named: nothing is certain there.
    """
    try:
        return policy_file.is_relative_to(Path(workspace).resolve())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of symlinks, before Python 3.13
        return True


def without_permissions(policy: Policy) -> Policy:
    """Return what counts of a file that an agent could write: what it denies and asks for, and nothing it allows."""
    return Policy.model_construct(rule=[rule for rule in policy.rule if rule.verdict != "allow"])
