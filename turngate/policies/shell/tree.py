"""The structure of a command line as tree-sitter sees it. Not to be believed unchecked: see ``shell_parser``."""

from __future__ import annotations

import threading

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from turngate.policies.shell.words import UnreadableError

MAX_PARTS = 20_000
"""Nodes of the tree: more take longer than a fifth of a second, and are no command that a person could judge either."""

_LANGUAGE = Language(tree_sitter_bash.language())
_local = threading.local()  # a Parser is not safe to share between threads


def tree_of(src: bytes) -> Node:
    """Return the root of the tree. Raises UnreadableError when there are too many parts, or an error in them."""
    root = _parser().parse(src).root_node
    if root.descendant_count > MAX_PARTS:
        raise UnreadableError(f"it has more than {MAX_PARTS} parts")
    if root.has_error:
        raise UnreadableError("it is no command line that can be read with certainty")
    return root


def _parser() -> Parser:
    parser: Parser | None = getattr(_local, "parser", None)
    if parser is None:
        parser = _local.parser = Parser(_LANGUAGE)
    return parser
