"""The part of the gateway that labels workflows as they start: search attributes, priority, fairness key.

A server that doesn't know our search attributes refuses a start that has one. So they are looked at before the first start,
and left out where one is missing: no run fails, or waits, for a label.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from temporalio.client import Client
from temporalio.common import Priority, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from turngate.domain.runs.labels import ATTRIBUTES, RunLabels
from turngate.runtime import search_attributes

logger = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS: Final = 60.0
"""How long attributes stay off that the server doesn't have: someone may be adding them. Those it has aren't looked at again."""

Attributes = Literal["on", "off", "missing", "unknown"]
"""``off``: by the settings. ``missing``: the namespace lacks one. ``unknown``: the server didn't say."""


@dataclass(frozen=True, kw_only=True)
class LabelSettings:
    """What runs are labelled with."""

    search_attributes: bool = True
    priority: bool = True
    fairness: bool = True


class Labels:
    """What the server takes of a run's labels. One for each client."""

    def __init__(self, client: Client, settings: LabelSettings | None = None) -> None:
        self._client = client
        self.settings = settings or LabelSettings()
        self._attributes: Attributes = "unknown" if self.settings.search_attributes else "off"
        self._looked_at = float("-inf")
        self._look = asyncio.Lock()
        self.lacking: list[str] = []
        """The search attributes that the namespace doesn't have."""

    async def attributes(self) -> Attributes:
        """Return whether runs get search attributes, after a look if there was none lately. Never raises."""
        if self._attributes in {"on", "off"} or self._is_fresh():
            return self._attributes
        async with self._look:
            if not self._is_fresh():
                await self._look_at_server()
        return self._attributes

    async def look(self) -> Attributes:
        """Return the same, after a look at the server."""
        if self._attributes != "off":
            async with self._look:
                await self._look_at_server()
        return self._attributes

    def of(self, labels: RunLabels | None) -> LabelOptions:
        """Return these labels as this server takes them."""
        return LabelOptions(self, labels)

    def note_refused(self, error: RPCError) -> bool:
        """Note that a start was refused for its search attributes, which are off for a while then. False: it was not."""
        if error.status is not RPCStatusCode.INVALID_ARGUMENT or "search attribute" not in error.message.lower():
            return False
        logger.warning("search attributes are off for a while, because Temporal refused one: %s", error.message)
        self._attributes, self._looked_at = "missing", time.monotonic()
        return True

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._looked_at < LOOK_AGAIN_SECONDS

    async def _look_at_server(self) -> None:
        before = self._attributes, self.lacking
        try:
            self.lacking = await search_attributes.missing(self._client)
            self._attributes = "missing" if self.lacking else "on"
        except (RPCError, RuntimeError, TimeoutError) as error:  # a lazy client that cannot connect raises RuntimeError
            if self._attributes != "on":  # what it had, it has
                self._attributes = "unknown"
            why = str(error)
        else:
            why = f"the namespace {self._client.namespace} lacks {', '.join(self.lacking)}"
        self._looked_at = time.monotonic()
        if self._attributes != "on" and before != (self._attributes, self.lacking):
            logger.warning("runs get no search attributes: %s (`turngate status` says what to do)", why)


@dataclass(frozen=True)
class LabelOptions:
    """The labels of one run, or of a schedule's runs, as one server takes them. None: it has none."""

    server: Labels
    labels: RunLabels | None

    async def attributes(self) -> dict[str, str]:
        """Return the search attributes that a start gets now; none where they are off."""
        if self.labels is None or await self.server.attributes() != "on":
            return {}
        return self.labels.attributes

    @property
    def priority(self) -> Priority:
        """Return priority and fairness key, as far as they are switched on. A server that knows neither ignores both."""
        settings = self.server.settings
        if self.labels is None:
            return Priority.default
        return Priority(
            priority_key=self.labels.priority if settings.priority else None,
            fairness_key=self.labels.fairness_key if settings.fairness else None,
        )

    async def sent_with(self, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        """Call ``send`` with the SDK's arguments; again without search attributes if the server refuses them."""
        attributes = await self.attributes()
        if attributes:
            try:
                return await send({"priority": self.priority, "search_attributes": typed(attributes)})
            except RPCError as error:
                if not self.server.note_refused(error):
                    raise
        return await send({"priority": self.priority})


def typed(attributes: Mapping[str, str]) -> TypedSearchAttributes:
    """Return search attributes as the SDK takes them."""
    return TypedSearchAttributes(
        [SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in attributes.items()]
    )


def values_of(attributes: TypedSearchAttributes) -> dict[str, str]:
    """Return our search attributes that a workflow or a schedule has, by name."""
    values = {name: attributes.get(SearchAttributeKey.for_keyword(name)) for name in ATTRIBUTES}
    return {name: value for name, value in values.items() if value is not None}
