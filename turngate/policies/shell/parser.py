"""A command line as bash would run it: every simple command in it, and why there may be more.

Tree-sitter finds the structure; it was made for colouring text, and errs where an attacker would look. So nothing is
believed that is not checked on the bytes: between the parts of a statement are only blanks (``source``), each word is
read again (``words``), here-documents end where bash ends them, and a construct that is not known here makes the
text unreadable. ``tests/unit/policies/test_against_bash.py`` compares the result with what bash does.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from turngate.domain.policy.command_line import Commands, SimpleCommand, Unparsable, Word, known, unknown
from turngate.policies.shell.commands import MAX_WRAPPERS, Collected, TooDeepError, collect
from turngate.policies.shell.options import names
from turngate.policies.shell.redirects import OPERATORS, REDIRECTS, Heredocs, check_expanded, is_harmless, what_it_reads
from turngate.policies.shell.source import Source, checked_bytes
from turngate.policies.shell.words import UnreadableError, WordReader

# The structure of a command line as tree-sitter sees it. Not to be believed unchecked: see below.


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


# ``[ … ]`` and ``[[ … ]]``: the first is a command like others, the second is syntax that may evaluate its text.


_DOUBLE = re.compile(rb"\[\[[ \t].*[ \t]\]\]", re.DOTALL)
_EVALUATES = re.compile(rb"\$\(|`|-(?:eq|ne|lt|le|gt|ge|v|R)\b")
_OPENING_BRACKETS = 2


def check_double(written: bytes) -> str | None:
    """Check ``[[ … ]]``, its substitutions taken out. Return a doubt, or None.

    A numeric operator evaluates its text and ``-v`` its subscript: ``[[ 'a[$(rm x)]' -eq 1 ]]`` runs ``rm``.
    """
    if not _DOUBLE.fullmatch(written) or b"]]" in written[2:-2]:
        raise UnreadableError("'[[' is joined with other text")
    may_evaluate = _EVALUATES.search(written) is not None or written.count(b"[") > _OPENING_BRACKETS
    return "'[[' with a test that may evaluate its text" if may_evaluate else None


def single_words(src: bytes, start: int, end: int, holes: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield where the words of ``[ … ]`` are, by the blanks outside quotations: the tree's nodes in it are not words."""
    if src[start + 1 : start + 2] not in {b" ", b"\t"}:
        raise UnreadableError("'((' evaluates arithmetic, which may run commands")
    at = start
    while at < end:
        if src[at] in b" \t":
            at += 1
        elif src.startswith(b"\\\n", at):
            at += 2
        else:
            begin = at
            while at < end and src[at] not in b" \t":
                at = holes.get(at) or _past_quotation(src, at, end)
            yield begin, at


def _past_quotation(src: bytes, at: int, end: int) -> int:
    quote = src[at : at + 1]
    if quote not in {b"'", b'"'}:
        return at + (2 if quote == b"\\" else 1)
    closing = src.find(quote, at + 1, end)
    if closing < 0 or b"\\" in src[at:closing] or b"$(" in src[at:closing]:
        raise UnreadableError("a test holds a quotation that is not judged")
    return closing + 1


# Expansions: which of them can only be text. The others may run a command or set a variable (bash(1), EXPANSION).


_PARAMETER = re.compile(
    rb"\$\{#?(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*?$-])(?:(?::?[-+?]|##?|%%?|//?)[^`$\\\"'{}<>()]*)?\}"
)
_ARITHMETIC = re.compile(rb"\$(?:\(\(|\[)[0-9\s+*/%<>=!&|^~?:,()-]*(?:\)\)|\])")


def doubt_in(kind: str, written: bytes) -> str | None:
    """Return why an expansion is more than text, or None. ``written``: its inner substitutions taken out.

    ``${x@P}`` and ``${!x}`` run what ``x`` holds, ``${x:=…}`` sets it, and arithmetic evaluates names again and again.
    """
    if kind == "expansion" and not _PARAMETER.fullmatch(written):
        return f"the expansion {written.decode(errors='replace')!r} may run a command or set a variable"
    if kind == "arithmetic_expansion" and not _ARITHMETIC.fullmatch(written):
        return "arithmetic with names may run what the names hold"
    return None


MAX_NESTING = 60

_HOLES = names("command_substitution process_substitution expansion arithmetic_expansion")
_BLOCKS = names(
    "program list pipeline compound_statement subshell do_group if_statement elif_clause else_clause while_statement "
    "negated_command command_substitution process_substitution"
)
_CHOICES = names("for_statement case_statement case_item")
_TOKENS = names("; & && || | |& ( ) { } ! if then elif else fi while until do done $( <( >( ` ;; ;& ;;&") | {"\n"}
_CHOICE_TOKENS = _TOKENS | names("for select in case esac")
_CLOSES = re.compile(rb"[ \t\n]*\)")
_ASSIGNMENT = re.compile(rb"([A-Za-z_][A-Za-z0-9_]*)\+?=")
_FUNCTION_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_-]*")


@lru_cache(maxsize=64)
def read_command(text: str) -> Commands | Unparsable:
    """Return what ``bash -c text`` would run. Has no effect, never raises; texts above 64 KiB are not read."""
    try:
        collected = Collected()
        _read_into(text, collected, 0)
    except (UnreadableError, TooDeepError) as error:
        return Unparsable(reason=str(error))
    except RecursionError:
        return Unparsable(reason="it nests too deep")
    return collected.commands()


def _read_into(text: str, collected: Collected, wrappers: int) -> None:
    if wrappers > MAX_WRAPPERS:
        raise TooDeepError(f"it wraps commands more than {MAX_WRAPPERS} times")
    _Reader(checked_bytes(text), collected, wrappers).read()


class _Reader:
    """One text being read into ``collected``."""

    def __init__(self, src: bytes, collected: Collected, wrappers: int) -> None:
        self._source, self._collected, self._wrappers = Source(src), collected, wrappers
        self._heredocs = Heredocs(src)
        self._nesting = 0
        self._substitutions = 0

    def read(self) -> None:
        root = tree_of(self._source.src)
        self._source.blank(0, root.start_byte)  # the root begins at its first token, not at the first byte
        self._source.blank(root.end_byte, len(self._source.src))
        self._statement(root)

    # --- structure

    def _statement(self, node: Node) -> None:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise UnreadableError("it nests too deep")
        if node.type in _BLOCKS:
            self._block(node)
        elif node.type in _CHOICES:
            self._choices(node)
        else:
            self._single(node)
        self._nesting -= 1

    def _single(self, node: Node) -> None:
        match node.type:
            case "command":
                self._command(node)
            case "redirected_statement":
                self._redirected(node)
            case "variable_assignment" | "variable_assignments":
                self._assignments(node)
            case "declaration_command" | "unset_command":
                self._source.apart(node.children)
                self._run(self._words(node.children), ())
            case "test_command":
                self._test(node)
            case "function_definition":
                self._function(node)
            case "comment":
                self._source.comment(node)
            case _:
                raise UnreadableError(f"it holds a construct that is not judged: {node.type.replace('_', ' ')}")

    def _block(self, node: Node) -> None:
        written = self._source.of(node)
        if written.startswith(b"(("):
            self._collected.doubt("'((' may be arithmetic or two subshells")
        if written.startswith(b"`") and re.search(rb"[\\\"`]", written[1:-1]):
            raise UnreadableError("quotations inside backquotes are not judged")
        outer = self._collected.stdin
        for child in self._source.parts(node):
            if child.is_named:
                self._part(child)
                if child.type == "file_redirect":
                    self._shown_file(child)
            else:
                self._token(child, _TOKENS)
                if child.type in {"|", "|&"}:
                    self._collected.stdin = "a pipe"
        self._collected.stdin = outer

    def _part(self, child: Node) -> None:
        if child.type not in REDIRECTS:
            self._statement(child)
        elif self._redirect(child):
            raise UnreadableError("words follow a redirection that belongs to no command")

    def _shown_file(self, node: Node) -> None:
        """Note a redirection alone in a substitution: ``$(<file)`` is what ``cat file`` prints."""
        written = self._source.of(node).decode().lstrip("< \t")
        self._collected.add(
            SimpleCommand(words=(known("cat"), known(written) if written.isalnum() else unknown(written)))
        )

    def _token(self, node: Node, allowed: frozenset[str]) -> None:
        self._source.token(node, allowed)
        if node.type == "&":
            self._collected.background = True

    def _choices(self, node: Node) -> None:
        """Read ``for``, ``select`` and ``case``: their words, and the statements they choose between."""
        words: list[Node] = []
        pattern_read = node.type != "case_item"
        for child in self._source.parts(node):
            if not child.is_named:
                self._token(child, _CHOICE_TOKENS)
                pattern_read = pattern_read or child.type == ")"
            elif child.type in {"do_group", "case_item", "comment"} or (node.type == "case_item" and pattern_read):
                self._statement(child)
            elif child.type == "variable_name":
                self._collected.assigns((self._source.of(child).decode(),))
            else:
                words.append(child)
        self._words(words)

    def _function(self, node: Node) -> None:
        self._collected.doubt("it defines a function, which may take a program's name")
        for child in self._source.parts(node):
            if child.type == "word":
                if not _FUNCTION_NAME.fullmatch(self._source.of(child)):
                    raise UnreadableError("a function has a name that is not judged")
            elif child.is_named:
                self._part(child)
            else:
                self._source.token(child, names("function ( )"))

    # --- commands

    def _command(self, node: Node, after: Iterable[Node] = ()) -> None:
        """Read one command. ``after``: words the tree put after a redirection (``rm >log -rf x``)."""
        outer = self._collected.stdin
        self._note_input(node)
        words: list[Node] = []
        assigns: list[str] = []
        at, redirected = node.start_byte, False
        for child in node.children:
            self._source.same_line(at, child.start_byte)
            if redirected and child.type not in REDIRECTS and self._source.joined(at, child.start_byte):
                raise UnreadableError("a word is joined with a redirection")
            at, redirected = child.end_byte, child.type in REDIRECTS
            if child.type == "variable_assignment":
                assigns.append(self._assignment(child))
                if self._source.src[at : at + 1] not in {b" ", b"\t", b"\n", b""}:
                    raise UnreadableError("an assignment is joined with other text")
            elif redirected:
                words += self._redirect(child)
            else:
                words.append(child)
        self._run(self._words([*words, *after]), tuple(assigns))
        self._collected.stdin = outer

    def _redirected(self, node: Node) -> None:
        outer = self._collected.stdin
        self._note_input(node)
        body, after = None, list[Node]()
        for child in self._source.parts(node):
            if child.type in REDIRECTS:
                after += self._redirect(child)
            elif body is None:
                body = child
            else:
                raise UnreadableError("a redirection is followed by what is not judged")
        if body is not None and body.type == "command":
            self._command(body, after)
        elif after:
            raise UnreadableError("words follow a redirection that belongs to no command")
        elif body is not None:
            self._statement(body)
        else:
            self._collected.add(SimpleCommand(words=()))
        self._collected.stdin = outer

    def _assignments(self, node: Node) -> None:
        each = [node] if node.type == "variable_assignment" else list(self._source.parts(node))
        self._collected.add(SimpleCommand(words=(), assigns=tuple(self._assignment(child) for child in each)))

    def _assignment(self, node: Node) -> str:
        if (name := _ASSIGNMENT.match(self._source.of(node))) is None:
            raise UnreadableError("it assigns to an element of an array")
        self._words([node])
        self._collected.assigns((name.group(1).decode(),))
        return name.group(1).decode()

    def _test(self, node: Node) -> None:
        holes = self._holes([node])
        if self._source.of(node).startswith(b"[["):
            doubt = check_double(self._source.without(node.start_byte, node.end_byte, holes))
            if doubt is not None:
                self._collected.doubt(doubt)
            self._collected.add(SimpleCommand(words=(Word(text="[[", raw="[["), unknown("… ]]"))))
            return
        places = single_words(self._source.src, node.start_byte, node.end_byte, holes)
        self._run([self._word(start, end, holes) for start, end in places], ())

    # --- redirections

    def _redirect(self, node: Node) -> list[Node]:
        """Note a redirection; return the words after it, which belong to the command (``>f x``: x)."""
        if node.type == "heredoc_redirect":
            self._heredoc(node)
            return []
        first, *others = node.children
        operator, *targets = others if first.type == "file_descriptor" else node.children
        self._source.descriptor(first, operator)
        self._source.token(operator, OPERATORS)
        self._source.apart([operator, *targets])
        if not targets:
            if operator.type not in {"<&-", ">&-"}:
                raise UnreadableError("a redirection has no target")
            return []
        start, end = self._source.words(targets)[0]
        of_target = [target for target in targets if target.start_byte < end]
        if not is_harmless(operator.type, self._word(start, end, self._holes(of_target))):
            self._collected.writes.append(self._source.src[node.start_byte : end].decode())
        return targets[len(of_target) :]

    def _note_input(self, node: Node) -> None:
        """Note where a command, or a group of them, reads from, if one of its redirections says so."""
        for child in node.children:
            if child.type in REDIRECTS and (reads := what_it_reads(child, self._source.of(child))) is not None:
                self._collected.stdin = reads

    def _heredoc(self, node: Node) -> None:
        quoted, body_start, body_end = self._heredocs.body(node)
        at = node.start_byte
        first_line = [child for child in node.children if child.type not in {"heredoc_body", "heredoc_end"}]
        for child in first_line:
            self._source.blank(at, child.start_byte)
            at = child.end_byte
            self._source.descriptor(child, node.children[1])
            if not child.is_named:
                self._token(child, _TOKENS | names("<< <<-"))
            elif child.type not in {"heredoc_start", "file_descriptor"}:
                self._part(child)
        self._source.blank(at, body_start)
        if self._substitutions and _CLOSES.match(self._source.src, node.end_byte) is None:
            # bash 5.2 writes a substitution out and reads it again, and loses a ';' after a here-document on the way.
            raise UnreadableError("a here-document is followed by other commands of its substitution")
        if not quoted:
            holes = self._holes(child for child in node.children if child.type == "heredoc_body")
            check_expanded(self._source.without(body_start, body_end, holes))

    # --- words

    def _words(self, nodes: list[Node]) -> list[Word]:
        holes = self._holes(nodes)
        return [self._word(start, end, holes) for start, end in self._source.words(nodes)]

    def _word(self, start: int, end: int, holes: dict[int, int]) -> Word:
        return WordReader(self._source.src, start, end, holes).read()

    def _holes(self, nodes: Iterable[Node]) -> dict[int, int]:
        """Find the substitutions in the nodes, read the commands inside them, and return where each begins and ends."""
        holes: dict[int, int] = {}
        for node in nodes:
            if node.type in _HOLES:
                self._hole(node)
                holes[node.start_byte] = node.end_byte
            elif node.child_count:
                holes.update(self._holes(node.children))
        return holes

    def _hole(self, node: Node) -> None:
        if node.type in {"command_substitution", "process_substitution"}:
            self._substitutions += 1
            self._statement(node)
            self._substitutions -= 1
            return
        written = self._source.without(node.start_byte, node.end_byte, self._holes(node.children))
        if (doubt := doubt_in(node.type, written)) is not None:
            self._collected.doubt(doubt)

    def _run(self, words: list[Word], assigns: tuple[str, ...]) -> None:
        collect(words, assigns, self._collected, self._wrappers, _read_into)
