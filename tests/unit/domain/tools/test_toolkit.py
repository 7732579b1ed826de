"""Toolkits: composed before anything starts, looked up by exact name, overridden without a visible change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from turngate import (
    Agent,
    App,
    Invocation,
    Proceed,
    Tool,
    ToolContext,
    Toolkit,
    declare_tool,
    interaction_tool,
    sub_agent,
    tool,
)
from turngate.domain.errors import ConfigurationError, DuplicateToolNameError


class City(BaseModel):
    city: str


class Other(BaseModel):
    name: str


class Index:
    """A service."""


@tool(effect="read", ask=False)
async def get_weather(params: City) -> dict[str, int]:
    """Tell the weather."""
    return {"celsius": 18}


def search(number: int) -> Tool:
    @tool(effect="read", ask=False)
    async def search(params: City) -> int:
        """Search."""
        return number

    return search


QUESTION = interaction_tool(name="choose", description="Ask.", params=City, answer=Other)
SPLIT = declare_tool(name="put", description="Put.", params=City, success=str)


async def put(params: City) -> str:
    return params.city


async def other(params: Other) -> str:
    return params.name


async def aside(invocation: Invocation, proceed: Proceed) -> Any:
    del invocation
    return await proceed()


@pytest.mark.parametrize(
    ("build", "places"),
    [
        (lambda: Toolkit.of(search(1), search(2)), ["search", "search"]),
        (lambda: Toolkit.compose(Toolkit.of(search(1)), Toolkit.of(search(2))), ["in toolkit 1", "in toolkit 2"]),
        (
            lambda: Toolkit.compose(Toolkit.of(get_weather), Toolkit.of(), Toolkit.of(get_weather)),
            ["in toolkit 1", "in toolkit 3"],
        ),
        (
            lambda: Toolkit.compose(Toolkit.of(SPLIT), Toolkit.of(SPLIT.renamed("put"))),
            ["in toolkit 1", "in toolkit 2"],
        ),
    ],
)
def test_one_name_from_two_sources_is_refused_when_it_is_built(build: Any, places: list[str]) -> None:
    """The later tool never silently wins, as in some systems: the error names the tool and both sources."""
    with pytest.raises(DuplicateToolNameError) as refused:
        build()
    for source, place in zip(refused.value.details["sources"], places, strict=True):
        assert source.startswith(__name__)
        assert place in source
        assert source in refused.value.message
    assert "Toolkit.namespace(" in refused.value.message


def test_in_a_list_the_last_of_a_name_takes_the_firsts_place() -> None:
    """A server sent the list, so no one can rename its tools. The model's order stays, for its prompt cache."""
    first, last = search(1), search(2)
    kit = Toolkit.from_list([first, get_weather, last])
    assert kit.names == ["search", "get_weather"]
    assert kit.find("search") is last
    assert len(Toolkit.from_list([])) == 0


def test_namespaces_compose_and_hide_the_bare_name() -> None:
    """``github__search`` and ``linear__search`` are two tools, ``search`` is none; prefixes nest."""
    kit = Toolkit.compose(
        *(Toolkit.namespace(prefix, Toolkit.of(search(at))) for at, prefix in enumerate(["github", "linear"]))
    )
    assert kit.names == ["github__search", "linear__search"]
    assert kit.find("search") is None
    assert Toolkit.namespace("work", kit).names == ["work__github__search", "work__linear__search"]
    with pytest.raises(DuplicateToolNameError):
        Toolkit.compose(kit, Toolkit.namespace("github", Toolkit.of(search(3))))


def test_i6_a_namespaced_tool_is_another_one() -> None:
    """I6: the digest includes the name, so an approval of one is not valid for the other; all else stays the same."""
    renamed = Toolkit.namespace("geo", Toolkit.of(get_weather)).find("geo__get_weather")
    assert renamed is not None
    assert renamed.manifest == get_weather.manifest.model_copy(update={"name": "geo__get_weather"})
    assert renamed.manifest.digest != get_weather.manifest.digest
    assert renamed.handler == get_weather.handler


def test_wrapping_affects_local_tools_and_nothing_visible() -> None:
    """A tool that gets its handler later is wrapped too; the original kit stays unchanged."""
    kit = Toolkit.of(get_weather, SPLIT, QUESTION)
    wrapped = kit.wrap(aside).wrap(aside)
    assert [len(each.middleware) for each in wrapped] == [2, 2, 0]
    assert [len(each.middleware) for each in kit] == [0, 0, 0]
    assert [each.manifest for each in wrapped] == [each.manifest for each in kit]
    assert [len(each.middleware) for each in Toolkit.compose(wrapped, Toolkit.of(search(1)))] == [2, 2, 0, 0]


def test_handlers_are_supplied_by_name_as_mapping_or_keywords() -> None:
    """Both may be given, and keywords win; middleware, gate and descriptor stay."""
    kit = Toolkit.of(replace(SPLIT, ask=True)).wrap(aside)
    named, mapped = kit.handlers(put=put).find("put"), kit.handlers({"put": put}).find("put")
    both = kit.handlers({"put": other_put}, put=put).find("put")
    assert named is not None
    assert named == mapped == both
    assert named.handler is not None
    assert (named.handler.function, named.middleware, named.ask) == (put, (aside,), True)
    assert kit.find("put").handler is None  # type: ignore[union-attr]
    assert kit.handlers().names == kit.names


async def other_put(params: City) -> str:
    return ""


def not_async(params: City) -> str:
    return ""


@pytest.mark.parametrize(
    ("name", "function", "says"),
    [
        ("putt", put, r"no tool 'putt' to give a handler to; the tools are: get_weather, put, choose"),
        ("put", other, r"'put' is declared with City parameters, and its handler .*other takes Other"),
        ("choose", put, r"'choose' is of kind interaction, which has no handler"),
        ("put", not_async, r"'put': its handler .* must be an async function"),
        ("get_weather", SPLIT, r"'put' has no handler to replace that of 'get_weather'"),
    ],
)
def test_a_handler_that_does_not_fit_is_refused(name: str, function: Any, says: str) -> None:
    """Wrong name, wrong parameters, a kind without handlers, no coroutine, or no handler: each error names its fix."""
    kit = Toolkit.of(get_weather, SPLIT, QUESTION)
    with pytest.raises(ConfigurationError, match=says):
        kit.override(name, function)
    if not isinstance(function, Tool):
        with pytest.raises(ConfigurationError, match=says):
            kit.handlers({name: function})


def test_changing_a_kit_returns_another() -> None:
    """A kit that agents share never changes."""
    kit = Toolkit.of(get_weather, SPLIT)
    before = [vars(each).copy() for each in kit]
    kit.wrap(aside)
    kit.handlers(put=put)
    kit.override("get_weather", put)
    Toolkit.namespace("x", kit)
    assert [vars(each) for each in kit] == before


def test_an_apps_handlers_reach_every_agent_with_the_tool() -> None:
    """Shared sub-agents stay shared; an app without the tool, or with one of another kind, gets an error."""

    def agent(name: str, *tools: Tool) -> Agent:
        return Agent(name=name, instructions="", toolkit=Toolkit.of(*tools), model="scripted:x")

    below = agent("below", get_weather, SPLIT)
    app = App(agents=[agent("left", sub_agent(below), SPLIT), agent("right", sub_agent(below), QUESTION)])

    swapped = app.with_handlers({"put": put})
    assert swapped.find("below") is not below
    puts = {each.name: each.toolkit.find("put") for each in swapped.all_agents}
    assert {name: each.handler.function for name, each in puts.items() if each is not None and each.handler} == {
        "left": put,
        "below": put,
    }
    assert swapped.agents[0].toolkit.find("below").agent is swapped.agents[1].toolkit.find("below").agent  # type: ignore[union-attr]
    assert [each.version for each in swapped.all_agents] == [each.version for each in app.all_agents]
    with pytest.raises(
        ConfigurationError, match="no agent has a tool 'putt'; the tools are: below, choose, get_weather"
    ):
        app.with_handlers({"putt": put})
    with pytest.raises(ConfigurationError, match="of kind interaction, which has no handler"):
        app.with_handlers({"choose": put})


@pytest.mark.parametrize("prefix", ["my.server", "9", "x" * 60])
def test_a_namespace_that_makes_a_bad_name_is_refused(prefix: str) -> None:
    """A name with its prefix must still be one that every provider accepts."""
    with pytest.raises(ConfigurationError, match="is not allowed"):
        Toolkit.namespace(prefix, Toolkit.of(get_weather))


@pytest.mark.parametrize("name", ["constructor", "__class__", "_tools", "Search", "search ", ""])
def test_i9_only_declared_names_are_found(name: str) -> None:
    """I9: attribute names, other cases and near misses are unknown names."""
    assert Toolkit.of(search(1)).find(name) is None


def test_an_override_changes_only_the_handler() -> None:
    """Descriptor and digest stay; parameters and services are the new handler's."""

    @tool(effect="once", ask=True, description="Something else.")
    async def dry_run(city: City, ctx: ToolContext, index: Index) -> dict[str, int]:
        return {}

    kit = Toolkit.of(SPLIT, get_weather)
    swapped = kit.override("get_weather", dry_run).find("get_weather")
    assert swapped is not None
    assert swapped.manifest == get_weather.manifest
    assert (swapped.effect, swapped.ask) == ("read", False)
    assert swapped.handler == dry_run.handler
    assert swapped.handler is not None
    needs = (swapped.handler.params_name, swapped.handler.ctx_name, swapped.handler.services)
    assert needs == ("city", "ctx", (("index", Index),))
    assert kit.override("get_weather", dry_run).names == kit.names
