"""Which changes a module's functions can have, on its syntax tree: each may turn a right decision into a wrong one.

No change of texts, log lines, annotations, assertions or module-level code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OPPOSITES = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.BitAnd, ast.BitOr)),
)
OPPOSITE = {one: other for pair in OPPOSITES for one, other in (pair, pair[::-1])}
YES, NO, NOTHING = ast.Constant(True), ast.Constant(False), ast.Constant(None)
SQL = ("where", "and_", "or_")
SAME_SWAPPED = (*SQL, "max", "min", "isinstance")
LOGS = {"log", "logger", "assert_never"}


@dataclass(frozen=True)
class Mutant:
    """``place``: its number in its module, as :func:`changed` counts. ``line``: of its statement, as :func:`probed` has it."""

    place: int
    line: int
    function: str
    change: str


def variants(node: ast.AST, returns_bool: bool) -> Iterator[ast.AST]:  # noqa: C901, PLR0912 - a table: one row a kind
    """Yield what may replace this node."""
    match node:
        case ast.Compare(left, [operator], comparators) if type(operator) in OPPOSITE:
            yield ast.Compare(left, [OPPOSITE[type(operator)]()], comparators)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(OPPOSITE[type(operator)](), values)
            if isinstance(operator, ast.Or) and len(values) == 2:
                yield values[0]
        case ast.BinOp(left, operator, right) if type(operator) in OPPOSITE:
            yield ast.BinOp(left, OPPOSITE[type(operator)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.UnaryOp(ast.Not(), value) if returns_bool else NOTHING)
        case ast.If(_, body, orelse):
            yield from (ast.If(test, body, orelse) for test in (YES, NO))
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.comprehension(target, values, [_, *rest], is_async):
            yield ast.comprehension(target, values, rest, is_async)
        case ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Expr(ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Call(function, [_, _, *_] as arguments, keywords) if ast.unparse(function).endswith(SQL):
            yield from (ast.Call(function, [a for a in arguments if a is not one], keywords) for one in arguments)
        case ast.Call(function, [first, second, *rest], keywords) if not isinstance(first, ast.Starred):
            if not isinstance(second, ast.Starred) and not ast.unparse(function).endswith(SAME_SWAPPED):
                yield ast.Call(function, [second, first, *rest], keywords)


def is_left_alone(node: ast.AST) -> bool:
    """Say whether a node is a log line, a text, or a hint for type checkers."""
    if isinstance(node, ast.Expr | ast.Await):
        return is_left_alone(node.value)
    if isinstance(node, ast.Call):
        return not LOGS.isdisjoint(ast.unparse(node.func).split("."))
    return isinstance(node, ast.JoinedStr | ast.Assert)


class _Changes(ast.NodeTransformer):
    def __init__(self, wanted: int | None) -> None:
        self.wanted, self.mutants = wanted, list[Mutant]()
        self.scope, self.line, self.returns_bool = list[str](), 0, False

    def visit(self, node: ast.AST) -> ast.AST:
        outer = self.line, self.returns_bool
        if isinstance(node, ast.stmt):
            self.line = node.lineno
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            self.scope.append(node.name)
            if isinstance(node, FUNCTIONS):
                self.returns_bool = node.returns is not None and ast.unparse(node.returns) == "bool"
                self.scope.append("<locals>")
            node.body = [self.visit(each) for each in node.body]
            del self.scope[-2 if isinstance(node, FUNCTIONS) else -1 :]
        elif "<locals>" not in self.scope:
            node = self.generic_visit(node) if isinstance(node, ast.Module | ast.If) else node
        elif not is_left_alone(node):
            node = self._changed(node)
        self.line, self.returns_bool = outer
        return node

    def _changed(self, node: ast.AST) -> ast.AST:
        before = ast.unparse(node)
        chosen = None
        for variant in variants(node, self.returns_bool):
            if len(self.mutants) == self.wanted:
                chosen = ast.copy_location(variant, node)
            change = f"{short(before)} → {short(ast.unparse(variant))}"
            self.mutants.append(Mutant(len(self.mutants), self.line, ".".join(self.scope[:-1]), change))
        if isinstance(node, ast.AnnAssign):
            node.value = node.value and self.visit(node.value)
        elif not isinstance(node, ast.Raise):
            self.generic_visit(node)
        return chosen or node


def short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:60]} … {line[-27:]}"


def mutants_of(tree: ast.Module) -> list[Mutant]:
    changes = _Changes(None)
    changes.visit(tree)
    return changes.mutants


def changed(tree: ast.Module, place: int) -> ast.Module:
    """Return the tree with one change."""
    return _Changes(place).visit(tree)


def probed(tree: ast.Module, name: str) -> ast.Module:
    """Put ``__hit__("NAME:LINE")`` before each statement of a function."""
    within = {node for function in ast.walk(tree) if isinstance(function, FUNCTIONS) for node in ast.walk(function)}
    for node in within:
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, field, None), list):
                setattr(node, field, [part for each in statements for part in (*_probe(each, name), each)])
    return tree


def _probe(statement: ast.stmt, name: str) -> Iterator[ast.stmt]:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):  # a docstring stays first
        call = ast.Call(ast.Name("__hit__", ast.Load()), [ast.Constant(f"{name}:{statement.lineno}")], [])
        yield ast.copy_location(ast.Expr(call), statement)
