"""An argument's origin: the places that hold its value, best first, and what is doubtful about that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from turngate.domain.tools.secrets import MASKED

SourceKind = Literal["task", "message", "answer", "edit", "instructions", "result", "call"]
"""``task``: what the run was started with. ``message``: what a person wrote besides. ``answer``: what a person answered, or
said when they rejected a call. ``edit``: the arguments that a person put in place of the model's. ``instructions``: the
agent's. ``result``: a tool's. ``call``: an earlier call of the agent's own, which shows no more than that it said so before."""
PERSONAL: Final = frozenset({"task", "message", "answer", "edit"})
"""The kinds that a person wrote."""

Doubt = Literal["untrusted", "contradicts", "nowhere"]
"""``untrusted``: the value is only in what untrusted tools returned. ``contradicts``: a person names another of its kind, or it
is only in records of others than the one a person names. ``nowhere``: it is in nothing that the model was sent."""
Likeness = Literal["same", "number", "date", "url", "spacing", "pieces"]
"""How a place holds the value. ``pieces``: it holds one of several pieces that the value is put together from."""


class Place(BaseModel):
    """One place that holds a value, or a piece of it.

    ``message_id``: of the message that holds it; empty: no message does, as with instructions.
    ``tool``: of a result, an answer, an edit or a call. ``at``: where in the result (JSON pointer; JSON in a text counts as a
    part of it). ``step``: of its run; None: no step wrote it. ``agent``: the agent above whose conversation it is in; empty: the
    run's own. ``untrusted``: its tool declares that anyone may have written what it returns.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: SourceKind
    like: Likeness = "same"
    tool: str = ""
    at: str = ""
    step: int | None = None
    agent: str = ""
    message_id: str = ""
    untrusted: bool = False

    @property
    def words(self) -> str:
        """The place in words. It holds names that tools and results chose."""
        words = (
            _KINDS[self.kind].format(tool=self.tool) if self.tool or self.kind != "call" else "the agent's own words"
        )
        if self.agent:
            words = f"{words} of the agent {self.agent}"
        if self.at:
            words = f"{words} at {self.at}"
        return words if self.step is None else f"{words} (step {self.step})"


_KINDS: Final[dict[SourceKind, str]] = {
    "task": "the task",
    "message": "a person's message",
    "answer": "a person's answer to {tool}",
    "edit": "a person's edit of {tool}",
    "instructions": "the instructions",
    "result": "the result of {tool}",
    "call": "the agent's own call of {tool}",
}


class Origin(BaseModel):
    """Where one argument comes from. ``at``: the argument (JSON pointer).

    ``part``: the part of a longer text that this is about; empty: the whole value. ``places``: best first, at most
    :data:`MAX_PLACES`. ``doubt``: why a person should look; None: there is no reason. ``instead``: what a person names, if the
    value contradicts that. ``written``: the agent's own prose or another value that need not come from anywhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: str
    part: str = ""
    places: tuple[Place, ...] = ()
    doubt: Doubt | None = None
    instead: str = ""
    written: bool = False

    @property
    def label(self) -> str:
        """Which argument, or which part of one."""
        return f"{self.at}: {self.part}" if self.part else self.at

    @property
    def words(self) -> str:
        """Where it comes from, in words; empty: there is nothing to say. It holds names that tools and results chose."""
        return "".join(words for words, _place in self.pieces)

    @property
    def pieces(self) -> list[tuple[str, Place | None]]:
        """The words in pieces, each with the place that it names; None: it names none."""
        joint = " and " if any(place.like == "pieces" for place in self.places) else ", also "
        where: list[tuple[str, Place | None]] = []
        for place in self.places[:MAX_PLACES_IN_WORDS]:
            where.extend([(joint, None), (place.words, place)] if where else [(place.words, place)])
        before = after = ""
        if self.doubt == "nowhere":
            before = "in nothing that the model was sent" + ("; only in " if where else "")
        elif self.doubt == "untrusted":
            before, after = "only in ", ", which anyone may have written"
        if self.instead:
            after = f"{after}; people name {self.instead}"
        return [piece for piece in ((before, None), *where, (after, None)) if piece[0]]


class Origins(BaseModel):
    """Where the arguments of one call come from. ``complete``: all arguments, and all that the model was sent, were looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    items: tuple[Origin, ...] = ()
    complete: bool = True

    @property
    def note(self) -> str:
        """How far to trust this."""
        rest = "" if self.complete else " Not everything could be compared."
        return f"Found by comparing text; a paraphrase isn't recognised.{rest}"

    @property
    def doubtful(self) -> list[Origin]:
        """Those that a person should look at."""
        return [each for each in self.items if each.doubt is not None]

    def masked(self, secret: Collection[str], mask: Callable[[str], str]) -> Origins:
        """Return them without the words that they quote of secrets: even a piece of one says much.

        ``secret``: pointers of arguments that hold secrets. ``mask``: returns a text without secrets.
        """
        items = []
        for each in self.items:
            is_secret = any(each.at == pointer or each.at.startswith(f"{pointer}/") for pointer in secret)
            quotes = {"part": each.part, "instead": each.instead}
            hidden = {name: MASKED if is_secret and quote else mask(quote) for name, quote in quotes.items()}
            items.append(each.model_copy(update={**hidden, "at": mask(each.at)}))
        return self.model_copy(update={"items": tuple(items)})

    def under(self, pointer: str) -> Iterator[Origin]:
        """Yield the origins of the value at this pointer and of all inside it."""
        yield from (each for each in self.items if each.at == pointer or each.at.startswith(f"{pointer}/"))


class Doubts(BaseModel):
    """How many values of a call have each doubt: an argument, or a part of a longer text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    untrusted: int = 0
    contradicts: int = 0
    nowhere: int = 0

    @property
    def words(self) -> str:
        """The counts in words, to follow the word *values*; empty: there is no doubt."""
        counts = [
            (self.untrusted, "untrusted"),
            (self.contradicts, "contradicting people"),
            (self.nowhere, "from nowhere"),
        ]
        return ", ".join(f"{count} {doubt}" for count, doubt in counts if count)


OF_AN_EDIT: Final = Origins()
"""Of arguments that a person put in place of the model's, as rules see them: the person vouches for each value."""
MAX_PLACES: Final = 3
MAX_PLACES_IN_WORDS: Final = 2
