"""Path rules: globs over where a path leads, by its text and with every symlink followed.

A pattern is one of three:

- ``/etc/**``: absolute;
- ``**/.env``: anywhere;
- ``src/**``: relative to the run's workspace (relative to its real place for the real path).

Deny and ask rules match when the text **or** the real path does; allow rules only when both do. For deny and ask the
symlinks in the plain beginning of the pattern are followed too. For allow they are not: what lies in the workspace is the
agent's to replace. ``~`` is an ordinary name, as for our tools. Pure: where a path leads is asked of the facts.

A rule sees the path that a call names. What a recursive tool finds below it is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from turngate.domain.policy.facts import CallFacts, Match, PathResolver, ResolvedPath
from turngate.domain.policy.globs import has_wildcard, parse_glob

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_SLASHES: Final = 256
"""Of a text whose links are followed."""
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True, slots=True)
class PathPattern:
    """One checked glob. ``relative``: to the workspace; else it is matched against the whole path."""

    text: str
    relative: bool

    def fits(self, path: str, base: str | None) -> bool:
        """Tell whether an absolute path fits; ``base``: what a relative pattern is relative to."""
        if not self.relative:
            return parse_glob(self.text).fits(path)
        if base is None:
            return False
        glob = parse_glob(self.text)
        if path == base:
            return glob.fits("")
        directory = base if base == "/" else f"{base}/"
        return path.startswith(directory) and glob.fits(path.removeprefix(directory))

    @property
    def plain_beginning(self) -> tuple[str, str]:
        """The parts before the first wildcard, and the rest with its slash (empty: there is no wildcard)."""
        parts = self.text.split("/")
        plain = next((index for index, part in enumerate(parts) if has_wildcard(part)), len(parts))
        rest = "/".join(parts[plain:])
        return "/".join(parts[:plain]), f"/{rest}" if rest else ""


@lru_cache(maxsize=1024)
def parse_path_pattern(text: str) -> PathPattern:
    """Check a pattern. Raises ValueError that says the fix."""
    if not text:
        raise ValueError("an empty path pattern matches nothing: write '**' for every path")
    if _CONTROL.search(text):
        raise ValueError(f"{text!r} holds control characters, which no path rule can mean")
    if text.startswith("~"):
        raise ValueError(f"{text!r}: '~' is an ordinary name here; write the whole path, like '/home/ann/**'")
    parts = text.removeprefix("/").split("/")
    if text != "/" and "" in parts:
        raise ValueError(f"{text!r} has an empty part: write 'src/**' for what lies in src, 'src' for src itself")
    if {".", ".."}.intersection(parts):
        raise ValueError(f"{text!r}: paths are compared without '.' and '..'; write where it leads")
    parse_glob(text)
    return PathPattern(text=text, relative=not text.startswith("/") and parts[0] != "**")


def match_path(patterns: Sequence[str], path: str, facts: CallFacts, *, allowing: bool) -> Match:
    """Tell whether one path fits one of the patterns, as the module says."""
    resolved = facts.resolve_path(path, facts.workspace)
    base = _workspace(facts)
    parsed = [parse_path_pattern(pattern) for pattern in patterns]
    if allowing:
        return _allows(parsed, resolved, base)
    known = [(place, at) for place, at in ((resolved.lexical, base.lexical), (resolved.real, base.real)) if place]
    if any(
        _denies(pattern, place, at, facts.resolve_path, facts.workspace) for pattern in parsed for place, at in known
    ):
        return "yes"
    homeless = any(pattern.relative for pattern in parsed) and base.real is None
    return "unclear" if homeless or len(known) < 2 else "no"  # noqa: PLR2004 - the text and the real path


def follows_link(path: str, facts: CallFacts) -> bool:
    """Tell whether a path leads, or may lead, elsewhere than its text says, by a link that isn't on the way to the workspace.

    Any text may be a path, of which only the tool knows: one that names nothing on the disk leads where it says.
    """
    if path.count("/") > MAX_SLASHES:
        return True
    resolved, base = facts.resolve_path(path, facts.workspace), _workspace(facts)
    if resolved.lexical is None or resolved.real is None:
        return facts.workspace is not None or path.startswith("/")
    return _below(resolved.lexical, base.lexical) != _below(resolved.real, base.real)


def _below(path: str, base: str | None) -> str:
    return f"{path}/" if base is None else f"{path}/".removeprefix(f"{base.rstrip('/')}/")


def _workspace(facts: CallFacts) -> ResolvedPath:
    if facts.workspace is None:
        return ResolvedPath(lexical=None, real=None)
    return facts.resolve_path(".", facts.workspace)


def _allows(patterns: Sequence[PathPattern], resolved: ResolvedPath, base: ResolvedPath) -> Match:
    lexical, real = resolved.lexical, resolved.real
    if lexical is None or real is None:
        return "unclear"
    by_text = any(pattern.fits(lexical, base.lexical) for pattern in patterns)
    return "yes" if by_text and any(pattern.fits(real, base.real) for pattern in patterns) else "no"


def _denies(pattern: PathPattern, place: str, base: str | None, resolve: PathResolver, workspace: str | None) -> bool:
    if pattern.fits(place, base):
        return True
    beginning, rest = pattern.plain_beginning
    if not beginning or (pattern.relative and workspace is None):
        return False
    followed = resolve(beginning, workspace).real
    if followed is None:
        return False
    whole = _WILDCARD.sub(r"[\g<0>]", followed) + rest if followed != "/" else rest or "/"
    return parse_glob(whole).fits(place)


def match_workspace(patterns: Sequence[str], facts: CallFacts, *, allowing: bool) -> Match:
    """Tell whether the run's workspace fits; a run without one fits only ``*``."""
    if "*" in patterns:
        return "yes"
    if facts.workspace is None:
        return "no"
    return match_path(patterns, ".", facts, allowing=allowing)


def check_workspace_pattern(text: str) -> str:
    """Return a workspace pattern as it is. Raises ValueError, saying the fix, for one that can never match."""
    if text != "*" and parse_path_pattern(text).relative:
        raise ValueError(f"{text!r}: a workspace is an absolute path; write '/srv/**', '**/name', or '*' for every run")
    return text
