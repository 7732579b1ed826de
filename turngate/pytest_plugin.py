"""A pytest plugin: the fixture ``turngate_replay`` runs an app against a run that ``turngate export`` wrote.

    async def test_a_refund_goes_as_it_went(turngate_replay):
        report = await turngate_replay(app, "fixtures/refund.json")
        report.check()

    def test_the_same_without_async(turngate_replay):
        turngate_replay.run(app, "fixtures/refund.json").check()

Pytest loads it by its entry point (``turngate``); only pytest may import it. The engine is imported when a test asks.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import pytest

if TYPE_CHECKING:
    from turngate.domain.agents.app import App
    from turngate.domain.runs.fixtures import Fixture
    from turngate.testing import ReplayReport
    from turngate.testing.replay import ReplayOptions


class Replay:
    """Replays fixtures, each in its own directory. Paths are relative to the test's file.

    The options are those of :func:`turngate.testing.replay_fixture`.
    """

    def __init__(self, directory: Path, fixtures: Path) -> None:
        self._directory = directory
        self._fixtures = fixtures
        self._count = 0

    async def __call__(self, app: App, fixture: Fixture | str | Path, **options: Unpack[ReplayOptions]) -> ReplayReport:
        """Run the app against a fixture and return the differences; ``report.check()`` fails the test if there are any."""
        from turngate.testing import replay_fixture  # noqa: PLC0415 - the engine takes a second to import

        self._count += 1
        directory = self._directory / f"turngate-replay-{self._count}"
        directory.mkdir()
        source = self._fixtures / fixture if isinstance(fixture, str | Path) else fixture
        return await replay_fixture(app, source, directory, **options)

    def run(self, app: App, fixture: Fixture | str | Path, **options: Unpack[ReplayOptions]) -> ReplayReport:
        """Do the same in a test without ``async``, on its own event loop."""
        return asyncio.run(self(app, fixture, **options))


@pytest.fixture
def turngate_replay(request: pytest.FixtureRequest, tmp_path: Path) -> Replay:
    """Replay what `turngate export` wrote: await it with an app and a file, and check the report."""
    return Replay(tmp_path, request.path.parent)
