from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from support.servers.fake_provider import FakeProvider, serving_provider
from unit.models.wire.recordings import RESPONSES, SPECS, WITHOUT_SCHEMAS, models_at

from turngate.models import Models, OpenAICompatibleModel

KEY = "sk-very-secret-0123456789"


@pytest.fixture(scope="session")
def _served_provider() -> Iterator[FakeProvider]:
    with serving_provider() as served:
        yield served


@pytest.fixture
def provider(_served_provider: FakeProvider) -> FakeProvider:
    """One server for all tests, emptied for each."""
    _served_provider.reset()
    return _served_provider


@pytest.fixture
async def model(provider: FakeProvider) -> AsyncIterator[OpenAICompatibleModel]:
    model = OpenAICompatibleModel(provider.base_url, KEY, "gpt-x", timeout=5)
    yield model
    await model.aclose()


@pytest.fixture(scope="session")
async def wired_models(_served_provider: FakeProvider) -> AsyncIterator[Models]:
    """Models of every provider that pydantic-ai connects; all of them ask the one server."""
    models = models_at(_served_provider, *SPECS, WITHOUT_SCHEMAS, RESPONSES)
    yield models
    await models.aclose()


@pytest.fixture
def wired(wired_models: Models, provider: FakeProvider) -> Models:
    """Those models, with an empty server."""
    return wired_models
