"""Who answers in a session: its agent, and its model as an option that an editor shows.

A model that is chosen there answers in the live run at once, else in the next one.

Source: https://agentclientprotocol.com/protocol/session-config-options
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from acp.schema import SessionConfigOptionSelect, SessionConfigSelectOption

from turngate.client import TurngateClient
from turngate.domain.errors import ConfigurationError, ConflictError, InvalidInputError, TurngateError
from turngate.wire.agents import ModelChoice

MODEL: Final = "model"


class SessionModel:
    """Which model answers in a session. ``chosen`` None: the agent's own.

    ``is_new``: it was chosen after the newest run had begun, and not given to that one.
    """

    def __init__(
        self, client: TurngateClient, offered: Sequence[ModelChoice], current: str, chosen: str | None
    ) -> None:
        self._client = client
        self._offered = {each.name: each for each in offered}
        self.current = chosen or current
        self.chosen = chosen
        self.is_new = chosen is not None and chosen != current

    @property
    def options(self) -> list[SessionConfigOptionSelect]:
        """Return the option as the editor shows it."""
        offered = {self.current: ModelChoice(name=self.current), **self._offered}
        return [
            SessionConfigOptionSelect(
                type="select",
                id=MODEL,
                name="Model",
                category="model",
                current_value=self.current,
                options=[
                    SessionConfigSelectOption(value=each.name, name=each.name, description=each.stands_for or None)
                    for each in offered.values()
                ],
            )
        ]

    async def choose(self, config_id: str, value: object, run_id: str | None) -> None:
        """Let this model answer from now on. ``run_id``: the session's newest run.

        Raises InvalidInputError for an option or a model that was not offered.
        """
        if config_id != MODEL:
            raise InvalidInputError(f"there is no option {config_id!r}: the one there is is {MODEL!r}")
        if value != self.current and value not in self._offered:
            known = ", ".join(self._offered) or "none"
            raise InvalidInputError(
                f"the model {value!r} was not offered; these are: {known}. Any other goes by `turngate acp --model`"
            )
        is_taken = False
        if run_id is not None:
            with suppress(ConflictError):  # no run is live: the next one begins with it
                await self._client.switch_model(run_id, str(value))
                is_taken = True
        self.chosen = self.current = str(value)
        self.is_new = not is_taken

    def took(self, model: str) -> None:
        """Take note of the model that a run began with, or was switched to."""
        self.current, self.is_new = model, False


async def offered_models(client: TurngateClient) -> list[ModelChoice]:
    """Return the models to choose from; none where the API does not tell: a session needs no choice of models."""
    try:
        return await client.list_models()
    except TurngateError:
        return []


async def answering_agent(client: TurngateClient, wanted: str | None) -> tuple[str, str]:
    """Return the agent that answers in new sessions, and its own model. ``wanted`` None: the only one there is.

    Raises ConfigurationError, naming those there are, when that is none.
    """
    known = {each.name: each for each in await client.list_agents()}
    if wanted is None:
        names = [each.name for each in known.values() if not each.sub_agent_of]
        if not names:
            raise ConfigurationError("no worker has published an agent yet: start one with `turngate up APP`")
        if len(names) > 1:
            raise ConfigurationError(f"there are several agents: say which with --agent, one of {', '.join(names)}")
        wanted = names[0]
    if wanted not in known:
        raise ConfigurationError(f"there is no agent {wanted!r}: give --agent one of {', '.join(known) or 'none yet'}")
    return wanted, known[wanted].model
