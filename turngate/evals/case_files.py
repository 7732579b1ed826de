"""Cases from a YAML or JSON file; every error names the file, the line and the place in it.

A file is a mapping of ``cases`` (a list) and ``defaults`` (any keys of a case but ``name``). A case's own key counts before
that of the defaults, but for two: its handlers are put beside the defaults', and its approvers before theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from turngate.domain.errors import ConfigurationError
from turngate.evals.cases import Case

TOP: Final = frozenset({"cases", "defaults"})


class _Loader(yaml.SafeLoader):
    """YAML without dates: ``due: 2026-01-31`` in a call's arguments is text, because JSON has no dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_cases(path: str | Path) -> list[Case]:
    """Read a file of cases. A ``workspace`` in it is relative to the file.

    Raises ConfigurationError: it cannot be read, or is no file of cases; says each problem with its line and place.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"the file of cases {file} cannot be read: {reason}") from None
    found = parse_cases(text, str(file))
    return [_beside(case, file.resolve().parent) for case in found]


def parse_cases(text: str, source: str) -> list[Case]:
    """Return the cases of a file's text. Raises ConfigurationError as :func:`load_cases`; ``source`` names the file."""
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader with one resolver fewer
        tree = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    problems = _Problems(source, tree)
    if not isinstance(document, dict) or not isinstance(document.get("cases"), list) or not document["cases"]:
        raise ConfigurationError(f"{source} holds no cases: write `cases:`, and below it a list of them")
    for key in document.keys() - TOP:
        problems.add((key,), "there is no such key here; there are `cases` and `defaults`")
    defaults = document.get("defaults") or {}
    if not isinstance(defaults, dict):
        problems.add(("defaults",), "it is a mapping: keys of a case, for all of them")
        defaults = {}
    found: list[Case] = []
    for number, own in enumerate(document["cases"]):
        if not isinstance(own, dict):
            problems.add(("cases", number), "a case is a mapping, with a `name` and a `message`")
            continue
        try:
            case = Case.model_validate(_merged(defaults, own))
        except ValidationError as error:
            problems.add_all(error, ("cases", number), own, defaults)
            continue
        if any(case.name == other.name for other in found):
            problems.add(("cases", number, "name"), f"there is another case {case.name!r}: names are unique")
        found.append(case.at(f"{problems.at(('cases', number))} ({case.name!r})"))
    problems.refuse()
    return found


def _merged(defaults: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **own}
    if "message" in own or "messages" in own:
        merged = {key: value for key, value in merged.items() if key not in {"message", "messages"} or key in own}
    if isinstance(own.get("handlers"), dict) and isinstance(defaults.get("handlers"), dict):
        merged["handlers"] = {**defaults["handlers"], **own["handlers"]}
    if isinstance(own.get("approvers"), list) and isinstance(defaults.get("approvers"), list):
        merged["approvers"] = [*own["approvers"], *defaults["approvers"]]
    return merged


def _beside(case: Case, directory: Path) -> Case:
    if case.workspace is None:
        return case
    return case.model_copy(update={"workspace": directory / case.workspace.expanduser()}).at(case.place)


class _Problems:
    """What is wrong with a file, each said once."""

    def __init__(self, source: str, tree: yaml.Node | None) -> None:
        self._source = source
        self._tree = tree
        self._said: list[str] = []

    def at(self, path: tuple[int | str, ...]) -> str:
        """Return file, line and place of a path into the document."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        return f"{self._source}, line {self._line(path)}: {''.join(steps).removeprefix('.')}"

    def add(self, path: tuple[int | str, ...], message: str) -> None:
        """Note a problem."""
        said = f"{self.at(path)}: {message}"
        if said not in self._said:
            self._said.append(said)

    def add_all(
        self, error: ValidationError, path: tuple[int | str, ...], own: dict[str, Any], defaults: dict[str, Any]
    ) -> None:
        """Note what a case's validation complains of, where it stands."""
        for issue in error.errors(include_url=False, include_context=False, include_input=False):
            place = issue["loc"]
            if place[:1] == ("approvers",) and isinstance(place[1:2], tuple) and len(place) > 1:
                before = len(own.get("approvers") or ())
                at = place[1] if isinstance(place[1], int) else 0
                shared = at >= before
                place = ("approvers", at - before if shared else at, *place[2:])
            else:
                shared = bool(place) and place[0] not in own and place[0] in defaults
            message = issue["msg"].removeprefix("Value error, ")
            self.add((("defaults",) if shared else path) + place, message)

    def refuse(self) -> None:
        """Raise ConfigurationError if anything was noted."""
        if self._said:
            raise ConfigurationError("; ".join(self._said), problems=self._said)

    def _line(self, path: tuple[int | str, ...]) -> int:
        """Return the line of the innermost part of a path that is there, from 1."""
        node, line = self._tree, 1
        for step in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
            elif isinstance(node, yaml.MappingNode):
                found = next(((key, value) for key, value in node.value if key.value == step), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line + 1, found[1]
            else:
                break
        return line
