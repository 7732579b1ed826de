from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from support.fake_provider import FakeProvider, serving_provider
from unit.models.wire.recordings import RESPONSES, SPECS, WITHOUT_SCHEMAS, models_at

from turngate.models import Models, OpenAICompatibleModel

KEY = "sk-very-secret-0123456789"


@pytest.fixture(scope="session")
def _served_provider() -> Iterator[FakeProvider]:
    with serving_provider() as served:
        yield served


@pytest.fixture
def provider(_served_provider: FakeProvider) -> FakeProvider:
    """One server for all tests, empty for each."""
    _served_provider.reset()
    return _served_provider


@pytest.fixture
async def model(provider: FakeProvider) -> AsyncIterator[OpenAICompatibleModel]:
    made = OpenAICompatibleModel(provider.base_url, KEY, "gpt-x", timeout=5)
    yield made
    await made.aclose()


@pytest.fixture(scope="session")
async def wired_models(_served_provider: FakeProvider) -> AsyncIterator[Models]:
    """Models of every provider behind pydantic-ai; all of them ask the one server."""
    made = models_at(_served_provider, *SPECS, WITHOUT_SCHEMAS, RESPONSES)
    yield made
    await made.aclose()


@pytest.fixture
def wired(wired_models: Models, provider: FakeProvider) -> Models:
    """Those models, on a server that is empty."""
    return wired_models
