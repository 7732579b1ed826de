"""Toolkits: composed before anything starts, looked up by exact name, overridden without a visible change."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from turngate import ToolContext, Toolkit, tool
from turngate.domain.errors import ConfigurationError, DuplicateToolNameError


class Query(BaseModel):
    text: str


class Index:
    """A service."""


@tool(effect="read", ask=False)
async def search(query: Query) -> list[str]:
    """Search."""
    return [query.text]


@tool(name="search")
async def search_again() -> str:
    """Search elsewhere."""
    return ""


@tool(effect="idempotent")
async def put(params: Query) -> None:
    """Put."""


@pytest.mark.parametrize("build", [Toolkit.of, lambda *tools: Toolkit.compose(*(Toolkit.of(each) for each in tools))])
def test_a_name_declared_twice_names_both_sources_and_the_fix(build) -> None:
    """Two tools of one name are refused when the kit is built; the error says where both are declared and what to do."""
    with pytest.raises(DuplicateToolNameError) as refused:
        build(search, put, search_again)
    sources = [f"{__name__}.search", f"{__name__}.search_again"]
    assert refused.value.details["tool"] == "search"
    assert [named.split()[0] for named in refused.value.details["sources"]] == sources
    assert all(named in refused.value.message for named in refused.value.details["sources"])
    assert "Toolkit.namespace(" in refused.value.message


def test_a_namespace_separates_equal_names() -> None:
    """With a prefix both exist; the handler and everything else stay the same."""
    kit = Toolkit.compose(Toolkit.of(search), Toolkit.namespace("web", Toolkit.of(search_again)))
    assert kit.names == ["search", "web__search"]
    renamed = kit.find("web__search")
    assert renamed is not None
    assert (renamed.handler, renamed.effect, renamed.source) == (
        search_again.handler,
        search_again.effect,
        search_again.source,
    )
    assert search_again.name == "search"


@pytest.mark.parametrize("prefix", ["my.server", "9", "x" * 60])
def test_a_namespace_that_makes_a_bad_name_is_refused(prefix: str) -> None:
    """A name with its prefix must still be one that every provider accepts."""
    with pytest.raises(ConfigurationError, match="is not allowed"):
        Toolkit.namespace(prefix, Toolkit.of(search))


def test_an_override_changes_only_the_handler() -> None:
    """Descriptor and digest stay; parameters and services are the new handler's."""

    @tool(effect="once", ask=True, description="Something else.")
    async def dry_run(query: Query, ctx: ToolContext, index: Index) -> list[str]:
        return []

    kit = Toolkit.of(put, search)
    swapped = kit.override("search", dry_run).find("search")
    assert swapped is not None
    assert swapped.manifest == search.manifest
    assert (swapped.effect, swapped.ask) == ("read", False)
    assert swapped.handler == dry_run.handler
    assert swapped.handler is not None
    needs = (swapped.handler.params_name, swapped.handler.ctx_name, swapped.handler.services)
    assert needs == ("query", "ctx", (("index", Index),))
    assert kit.find("search") is search
    assert kit.override("search", dry_run).names == kit.names


def test_an_override_of_an_unknown_tool_lists_the_names() -> None:
    """The error lists the kit's tools."""
    with pytest.raises(ConfigurationError, match=r"'serch'.*put, search"):
        Toolkit.of(put, search).override("serch", search_again)


@pytest.mark.parametrize("name", ["constructor", "__class__", "_tools", "Search", "search ", ""])
def test_i9_only_declared_names_are_found(name: str) -> None:
    """I9: attribute names, other cases and near misses are unknown names."""
    assert Toolkit.of(search).find(name) is None


def test_order_and_size_are_as_declared() -> None:
    """The model sees tools in declaration order, the same at every step (its prompt cache depends on that)."""
    kit = Toolkit.of(put, search)
    assert [each.name for each in kit] == kit.names == ["put", "search"]
    assert len(kit) == 2
    assert len(Toolkit.of()) == 0
