"""Context transforms: hooks that shape what the model is sent. The stored conversation always stays whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turngate import Hooks, RunScope
from turngate.domain.agents.hooks import Generate
from turngate.domain.conversation.messages import Message, user_message
from turngate.domain.digest import framed_sha256

MAX_SUMMARIES = 256
LEAST_KEPT = 2
"""Messages: a call and its results."""


class KeepRecent(Hooks):
    """Send the instructions, the first message (the task) and the newest messages only.

    ``messages``: how many of the newest, from 2. The cut never falls between calls and their results: a results message
    at the edge is left out with the calls it answers.
    """

    def __init__(self, messages: int) -> None:
        if messages < LEAST_KEPT:
            raise ValueError("KeepRecent(messages): at least 2")
        self._messages = self.newest_messages = messages

    async def before_model(self, scope: RunScope, messages: Sequence[Message], generate: Generate) -> Sequence[Message]:
        """Leave the middle out."""
        del scope, generate
        head, rest = _head_and_rest(messages)
        recent = list(rest[-self._messages :])
        while recent and recent[0].role == "tool":
            recent.pop(0)
        return [*head, *recent]


class Inject(Hooks):
    """Add a text after the conversation before every model call, such as the time, or what is on call today."""

    def __init__(self, text: Callable[[RunScope], str]) -> None:
        self._text = text

    async def before_model(self, scope: RunScope, messages: Sequence[Message], generate: Generate) -> Sequence[Message]:
        """Append the text as a user message. At the end, so that the prompt before it stays cached."""
        del generate
        return [*messages, user_message(self._text(scope))]


class Summarise(Hooks):
    """Once a conversation is longer than ``above`` messages, send a summary in place of all but the ``keep`` newest.

    The run's own model writes the summary. It is kept in memory by what it summarises, and moves on by whole blocks of
    ``above - keep`` messages, so that it is written once per block and the prompt before it stays the same (and cached)
    in between. A model that fails to summarise changes nothing.

    It counts messages and forgets its summaries with its process. ``Agent(context=Context(…))`` goes by the model's window,
    and keeps them in the store.
    """

    PROMPT = (
        "Summarise the conversation above for the agent that continues with it: the task, what was found out, decided and "
        "done (with exact names, numbers and paths), what failed, and what is still to do. Write nothing else."
    )

    def __init__(self, *, above: int = 80, keep: int = 20) -> None:
        if not LEAST_KEPT <= keep < above:
            raise ValueError("Summarise(above, keep): 2 <= keep < above")
        self._above, self._keep = above, keep
        self._summaries: dict[str, str] = {}

    async def before_model(self, scope: RunScope, messages: Sequence[Message], generate: Generate) -> Sequence[Message]:
        """Replace the oldest blocks with a summary."""
        del scope
        head, rest = _head_and_rest(messages)
        if len(rest) <= self._above:
            return messages
        block = self._above - self._keep
        cut = (len(rest) - self._keep) // block * block
        while cut < len(rest) and rest[cut].role == "tool":
            cut += 1
        old = [*head, *rest[:cut]]
        key = framed_sha256(*(message.model_dump_json() for message in old))
        if key not in self._summaries:
            summary = await generate([*old, user_message(self.PROMPT)])
            if not summary.strip():  # a filter, a refusal: not what the agent found out until now
                raise ValueError("the model answered without a summary")
            self._summaries[key] = summary
            while len(self._summaries) > MAX_SUMMARIES:
                self._summaries.pop(next(iter(self._summaries)))
        summed_up = user_message(f"Summary of the conversation so far:\n\n{self._summaries[key]}")
        return [*head, summed_up, *rest[cut:]]


def _head_and_rest(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Return the system messages with the first message after them, and what follows."""
    first = next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))
    return messages[: first + 1], messages[first + 1 :]
