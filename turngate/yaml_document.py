"""YAML and JSON that people write: scripts of models, cases of evals. Knows where in the file each value is.

YAML without dates (``due: 2026-01-31`` is text, because JSON has no dates), without a key that is there twice, and without
nesting that would exhaust Python's stack.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import yaml

Location = tuple[int | str, ...]
MAX_NESTING: Final = 100
MERGE: Final = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Document:
    """A file's value, and where its parts are."""

    value: Any
    _tree: yaml.Node | None

    def line(self, path: Location) -> int:
        """Return the line of the innermost part of a path that exists, from 1."""
        node, line = self._tree, 1
        for step in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
            elif isinstance(node, yaml.MappingNode):
                entry = next(((key, value) for key, value in node.value if key.value == step), None)
                if entry is None:
                    break
                line, node = entry[0].start_mark.line + 1, entry[1]
            else:
                break
        return line


class _Loader(yaml.SafeLoader):
    """A SafeLoader with one resolver fewer, that of dates, and a bound on nesting."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node. Raises YAMLError when it nests too deep, long before Python would."""
        self._depth += 1
        try:
            if self._depth > MAX_NESTING:
                raise yaml.YAMLError("it nests too deep")
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class KeyTwiceError(yaml.MarkedYAMLError):
    """A mapping has a key twice, and YAML would drop the first without a word."""

    @property
    def place(self) -> str:
        """``, line N``: where the second is."""
        return "" if self.problem_mark is None else f", line {self.problem_mark.line + 1}"


def read_document(text: str) -> Document:
    """Return the document in a YAML or JSON text.

    Raises:
        yaml.YAMLError: neither; ``problem_mark`` is the place, if there is one. :class:`KeyTwiceError` for a key that is twice.
        ValueError, RecursionError: a value that cannot be read.
    """
    # JSON first: it may be indented with tabs, which YAML refuses. Text has no raw tabs in JSON, so every tab is a blank.
    try:
        value = json.loads(text)
    except ValueError:
        loader = _Loader(text)
        tree = loader.get_single_node()
        _refuse_keys_twice(tree)
        return Document(None if tree is None else loader.construct_document(tree), tree)
    try:
        tree = _Loader(text.replace("\t", " ")).get_single_node()
    except yaml.YAMLError:  # what JSON escapes and YAML does not
        return Document(value, None)
    _refuse_keys_twice(tree)
    return Document(value, tree)


def _refuse_keys_twice(tree: yaml.Node | None) -> None:
    waiting, seen = [tree], set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            _refuse_key_twice(node)
            waiting.extend(value for _key, value in node.value)


def _refuse_key_twice(node: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
            continue
        if before := lines.get((key.tag, key.value)):
            raise KeyTwiceError(problem=f"the same key is in line {before}", problem_mark=key.start_mark)
        lines[key.tag, key.value] = key.start_mark.line + 1
