"""The changes that `make mutants` tries, and the probes by which it learns which tests run a line."""

import ast

import pytest
from mutants.changes import changed, mutants_of, probed


def function(*lines: str, returns: str = "object") -> ast.Module:
    return ast.parse("\n    ".join([f"def decide(call, log) -> {returns}:", '"""Decide."""', *lines]))


def changes(tree: ast.Module) -> list[str]:
    """Return the lines of the function, once with each change."""
    trees = [changed(ast.parse(ast.unparse(tree)), mutant.place) for mutant in mutants_of(tree)]
    return [" ".join(ast.unparse(statement) for statement in tree.body[0].body[1:]) for tree in trees]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["call.state = call.a <= call.b"], {"pass", "call.state = call.a < call.b"}),
        (["x = call.a or call.b"], {"x = call.a and call.b", "x = call.a"}),
        (["x = not call"], {"x = call"}),
        (["x = 1"], {"x = 2", "x = 0"}),
        (["x = call.a if call else call.b"], {"x = call.a", "x = call.b"}),
        (["x = [each for each in call if each]"], {"x = [each for each in call]"}),
        (["raise Refused(1)"], {"pass"}),
        (["record(call)"], {"pass"}),
        (["x = query.where(call.a, call.b)"], {"x = query.where(call.a)", "x = query.where(call.b)"}),
        (["x = settle(call.a, call.b)"], {"x = settle(call.b, call.a)"}),
        (["return call"], {"return None"}),
        (["log.warning('late', 1)", "assert call"], set()),
    ],
)
def test_a_change_may_turn_a_decision(lines: list[str], expected: set[str]) -> None:
    """Each change alters what a function decides or writes; log lines, texts and assertions stay."""
    assert set(changes(function(*lines))) == expected


def test_what_answers_yes_or_no_gives_the_opposite_answer() -> None:
    """A function that returns a bool returns the opposite, since None would often read as False."""
    assert changes(function("return call.waits", returns="bool")) == ["return not call.waits"]


def test_a_probe_tells_of_each_statement_that_runs() -> None:
    """A probe calls ``__hit__`` with the module and the line of each statement that runs, and of no other."""
    hits: list[str] = []
    names = {"__hit__": hits.append}
    tree = probed(function("if call:", "    return 1", "return 2"), "module")
    exec(compile(ast.fix_missing_locations(tree), "module", "exec"), names)  # noqa: S102 - our own text, from above
    assert names["decide"](False, None) == 2
    assert (names["decide"].__doc__, hits) == ("Decide.", ["module:3", "module:5"])
