"""A misspelled option is an error in every function that takes ``**options``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turngate import Agent, App, TextBlock, Toolkit, WaitUntil, declare_tool, tool
from turngate.client import requests, runs
from turngate.domain.errors import ConfigurationError
from turngate.domain.text.suggestions import refuse_unknown
from turngate.pytest_plugin import Replay
from turngate.testing import replay_fixture, running_app
from turngate.toolkits.json_schema import json_schema_tool

SOURCE = Path(__file__).parents[2] / "turngate"
APP = App(agents=[Agent(name="a", instructions="x", model="scripted:x", toolkit=Toolkit.of())])


async def run_app(directory: Path, **options: Any) -> None:
    async with running_app(APP, directory, **options):
        raise AssertionError("it ran")


CALLS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "tool": (lambda _dir, **more: tool(**more), "efect", "effect"),
    "declare_tool": (lambda _dir, **more: declare_tool(name="a", description="b", **more), "efect", "effect"),
    "json_schema_tool": (lambda _dir, **more: json_schema_tool(name="a", description="b", **more), "asks", "ask"),
    "running_app": (lambda at, **more: asyncio.run(run_app(at, **more)), "handler", "handlers"),
    "replay_fixture": (
        lambda at, **more: asyncio.run(replay_fixture(APP, "x.json", at, **more)),
        "handler",
        "handlers",
    ),
    "__call__": (lambda at, **more: asyncio.run(Replay(at, at)(APP, "x.json", **more)), "deadlin", "deadline"),
    "run": (lambda at, **more: Replay(at, at).run(APP, "x.json", **more), "any_results_of", "any_result_of"),
    "list_requests": (lambda _dir, **more: requests.list_requests(**more), "tol", "tool"),
    "count_requests": (lambda _dir, **more: requests.count_requests(**more), "statuss", "status"),
    "list_runs": (lambda _dir, **more: runs.list_runs(**more), "agnet", "agent"),
}
"""Function → a call of it, a misspelled option, and the one that is meant."""


@pytest.mark.parametrize("name", CALLS)
def test_a_misspelled_option_names_the_one_that_is_meant(name: str, tmp_path: Path) -> None:
    """Nothing runs: a test whose handlers are misspelled would call the real tools, and a list would have everything."""
    function, typed, meant = CALLS[name]
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{typed}'.* Did you mean '{meant}'\?"):
        function(tmp_path, **{typed: {}})


def test_what_resembles_nothing_gets_the_list() -> None:
    """So that the next try is right."""
    with pytest.raises(TypeError, match=r"f\(\) got an unexpected keyword argument 'zzz'. It takes: one, two."):
        refuse_unknown({"zzz": 1}, {"two", "one"}, "f")


def test_every_function_with_options_is_tried() -> None:
    """One that is added to Turngate gets its case above."""
    declared = [
        name
        for file in SOURCE.rglob("*.py")
        for name in re.findall(r"def (\w+)\([^)]*\*\*\w+: Unpack\[", file.read_text(encoding="utf-8"))
    ]
    assert sorted(declared) == sorted(CALLS)


def test_a_misspelled_value_is_an_error(tmp_path: Path) -> None:
    """Results come from where the test says, or it does not run."""
    with pytest.raises(ConfigurationError, match="results='handlrs': it is 'recorded' or 'handlers'"):
        asyncio.run(replay_fixture(APP, "x.json", tmp_path, results="handlrs"))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [lambda: WaitUntil(second=60), lambda: TextBlock(text="x", titel="y")])
def test_what_a_builders_function_returns_has_no_other_member(make: Callable[[], Any]) -> None:
    """A wait whose length is misspelled would be over at once."""
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        make()
