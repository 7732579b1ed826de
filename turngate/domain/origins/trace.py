"""Where the arguments of a call come from, found by deterministic matching over what the model was sent.

It compares texts and knows nothing of paraphrase: a value that the model computed, translated or reworded is in no source. Every
text here is hostile, so what is looked at is bounded, and whatever goes beyond a bound is said to be incomplete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from itertools import islice, takewhile
from typing import Any, Final, Protocol

from pydantic import JsonValue

from turngate.domain.origins import forms
from turngate.domain.origins.forms import normalised
from turngate.domain.origins.origin import MAX_PLACES, PERSONAL, Doubt, Likeness, Origin, Origins, Place
from turngate.domain.origins.sources import Corpus, Leaf, Source
from turngate.domain.text.argument_names import AMOUNTS, MINOR_UNITS, name_words
from turngate.domain.text.json_pointers import Ambiguous, decode_arguments, escaped
from turngate.domain.text.json_text import MAX_CHARS

MAX_ARGUMENTS: Final = 200
"""Of one call, that are looked up."""
MAX_DEPTH: Final = 50
MAX_VALUE_CHARS: Final = 20_000
"""Of a value that is looked up whole; of a longer one, what it names exactly in its beginning."""
MAX_PARTS: Final = 20
"""Of one value."""
MAX_SOURCES: Final = 16
"""That hold one value and are looked at."""
MAX_TRIES: Final = 200
"""In one source, at places where a value does not fit."""
MAX_NAME_CHARS: Final = 60
MAX_RECORD_CHARS: Final = 20_000
MAX_PEOPLES_CHARS: Final = 100_000
"""Of what people wrote, that is looked through for what they name."""
SUBSTRING_CHARS: Final = 6
"""From this length on a value may be a part of a word; a shorter one has to be a word of its own."""
TELLING_CHARS: Final = 3
"""A shorter value is looked up, but being nowhere means nothing of it."""
ACCOUNT_DIGITS: Final = 6
PROSE_WORDS: Final = 3
PROSE_CHARS: Final = 80


def trace(sources: Sequence[Source], raw_input: str, *, schema: Mapping[str, JsonValue] | None = None) -> Origins:
    """Return where each argument of a call comes from. Never raises for any text.

    Args:
        sources: what the model was sent, as :func:`~turngate.domain.origins.sources.sources_of` returns it.
        raw_input: the exact argument text.
        schema: of the tool's parameters; a value that it offers (a choice, a default) needs no other source.
    """
    return Tracer(sources).trace(raw_input, schema=schema)


@dataclass(frozen=True)
class _Argument:
    """One value of the arguments. ``name``: of its field."""

    at: str
    name: str
    value: str | int | Decimal

    @cached_property
    def text(self) -> str:
        return normalised(str(self.value)[:MAX_VALUE_CHARS])

    @cached_property
    def words(self) -> frozenset[str]:
        return name_words(self.name)

    @cached_property
    def numbers(self) -> set[Decimal]:
        """What it may mean as a number; of an amount in cents, also that in the whole unit."""
        meant = forms.readings(self.text)
        return meant | {each / 100 for each in meant} if self.words & MINOR_UNITS else meant

    @cached_property
    def is_prose(self) -> bool:
        """Whether it reads as sentences or lines, which a model writes itself."""
        text, words = str(self.value), self.text.split(" ")
        if "\n" in text.strip() or len(text) > PROSE_CHARS:
            return len(words) > 1 or len(text) > MAX_VALUE_CHARS
        plain = [word for word in words if not any(char.isdigit() for char in word)]
        return len(plain) >= PROSE_WORDS or (len(words) > 1 and all(word.isalpha() for word in words))


class Tracer:
    """Finds origins of values in the same sources, for all calls of a step."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._corpus = Corpus(sources)
        self._absent: set[str] = set()

    def with_source(self, source: Source) -> Tracer:
        """Return what finds origins in the same sources and one more."""
        return Tracer([*self._sources, source])

    def trace(self, raw_input: str, *, schema: Mapping[str, JsonValue] | None = None) -> Origins:
        """Return where each argument of a call comes from; as :func:`trace`."""
        try:
            decoded = decode_arguments(raw_input) if 0 < len(raw_input) <= MAX_CHARS else None
        except (ValueError, RecursionError):
            decoded = None
        if decoded is None:
            return Origins(complete=not raw_input)
        choices = _choices(schema or {})
        origins: list[Origin] = []
        complete = self._corpus.complete
        for argument in islice(_arguments(decoded, "", MAX_DEPTH), MAX_ARGUMENTS + 1):
            if argument is None or len(origins) >= MAX_ARGUMENTS:
                complete = False
                continue
            if str(argument.value) in choices.get(argument.name, ()):
                origins.append(Origin(at=argument.at, written=True))
                continue
            origins.extend(self._origins(argument))
            complete = complete and len(str(argument.value)) <= MAX_VALUE_CHARS
        return Origins(items=tuple(origins[:MAX_ARGUMENTS]), complete=complete)

    def _origins(self, argument: _Argument) -> list[Origin]:
        """Return the origin of a value; of prose that is in no source as a whole, those of what it names."""
        places = self._whole(argument)
        if not _independent(places) and argument.is_prose:
            parts = dict.fromkeys(islice(forms.particulars(str(argument.value)[:MAX_VALUE_CHARS]), MAX_PARTS))
            named = [self._part(argument, part) for part in parts]
            return [Origin(at=argument.at, written=True, places=_places(places)), *named]
        if not _independent(places):
            places = self._in_pieces(argument) or places
        doubt, instead = self._doubt(argument, places)
        written = doubt == "nowhere" and len(argument.text) < TELLING_CHARS
        return [
            Origin(
                at=argument.at,
                places=_places(places),
                doubt=None if written else doubt,
                instead=instead,
                written=written,
            )
        ]

    def _part(self, argument: _Argument, part: str) -> Origin:
        named = _Argument(argument.at, "", part)
        amounts = forms.money(named.text)
        places = self._by_number(amounts) if amounts else self._whole(named)
        doubt: Doubt | None = _worst(places)
        return Origin(at=argument.at, part=part, places=_places(places), doubt=doubt)

    # The ways in which a source may hold a value.

    def _whole(self, argument: _Argument) -> list[_Hit]:
        """Return the sources that hold a value in any of its forms, best first."""
        hits: list[_Hit] = []
        numbers, days = argument.numbers, forms.days_of(argument.text)
        if numbers:
            hits += self._by_number(numbers, is_minor=bool(argument.words & MINOR_UNITS))
        if days:
            hits += self._by_day(days)
        if not numbers or isinstance(argument.value, str):
            hits += self._by_text(argument.text, "same")
        for form in forms.url_forms(argument.text):
            hits += self._by_text(form, "url")
        if not hits:
            hits += self._by_account(argument.text)
        best: dict[int, _Hit] = {}
        for hit in sorted(hits, key=lambda hit: hit.source.rank):
            best.setdefault(id(hit.source), hit)
        return list(best.values())[:MAX_SOURCES]

    def _by_text(self, text: str, like: Likeness) -> list[_Hit]:
        offsets = self._offsets(text, lambda at: _fits(self._corpus.text, text, at))
        return self._hits(offsets, like, _test_of(text))

    def _by_number(self, numbers: set[Decimal], *, is_minor: bool = False) -> list[_Hit]:
        """Find an amount, in cents where a field says so. ``is_minor``: these are cents already."""
        in_cents = {number * 100 for number in numbers} if self._has_cents and not is_minor else set()
        offsets = [
            offset
            for number, is_minor in [*((each, False) for each in numbers), *((each, True) for each in in_cents)]
            for begin in forms.beginnings(number)
            for offset in self._offsets(begin, partial(self._is_number, number, is_minor=is_minor))
        ]

        def test(text: str, name: str = "") -> bool:
            wanted = numbers | in_cents if name_words(name) & MINOR_UNITS else numbers
            return any(number in wanted for number in forms.numbers(text[:MAX_RECORD_CHARS]))

        return self._hits(sorted(offsets), "number", test)

    def _is_number(self, number: Decimal, at: int, *, is_minor: bool) -> bool:
        """Tell whether a number begins there. ``is_minor``: and is the value of a field that holds cents."""
        text = self._corpus.text
        if text[at - 1 : at].isdigit() or not forms.begins_number(text, at, number):
            return False
        if not is_minor:
            return True
        before = text[max(0, at - MAX_NAME_CHARS) : at].rstrip(' "')
        return before.endswith('":') and bool(name_words(before[:-2].rpartition('"')[2]) & MINOR_UNITS)

    @cached_property
    def _has_cents(self) -> bool:
        return any(word in self._corpus.text for word in MINOR_UNITS)

    def _by_day(self, days: set[str]) -> list[_Hit]:
        text = self._corpus.text
        offsets = [
            offset
            for day in days
            for end in forms.ends_of_day(day)
            for offset in self._offsets(end, partial(forms.has_day_around, text, day))
        ]

        def test(text: str, _name: str = "") -> bool:
            beginning = text[:MAX_RECORD_CHARS]
            return any(day[:4] in beginning for day in days) and any(day in days for day in forms.dates(beginning))

        return self._hits(sorted(offsets), "date", test)

    def _by_account(self, text: str) -> list[_Hit]:
        """Find an account or telephone number that is written with other spaces."""
        packed = forms.compact(text)
        if not packed.isalnum() or sum(char.isdigit() for char in packed) < ACCOUNT_DIGITS:
            return []
        if packed not in self._packed_text:
            return []

        def test(text: str, _name: str = "") -> bool:
            return _holds_account(forms.compact(text), packed)

        holding = (source for source, compact in self._packed if _holds_account(compact, packed))
        return [_Hit(source, "spacing", test) for source in islice(holding, MAX_SOURCES) if not test(source.call_text)]

    def _in_pieces(self, argument: _Argument) -> list[_Hit]:
        """Return what holds the pieces of a value, such as the folders of a path; empty: one of them is nowhere."""
        pieces = forms.pieces(argument.text)
        if not 1 < len(pieces) <= MAX_PARTS:
            return []
        least: list[_Hit] = []
        for piece in pieces:
            if len(piece) < TELLING_CHARS or piece in {"http", "https", "www"}:
                continue
            hits = self._whole(_Argument(argument.at, argument.name, piece))
            if not _independent(hits):
                return []
            least.append(_Hit(hits[0].source, "pieces", hits[0].test))
        # The least trusted piece says what the whole is worth.
        return sorted(least, key=lambda hit: -hit.source.rank)

    def _hits(self, offsets: Iterable[int], like: Likeness, test: _Test) -> list[_Hit]:
        """Return the sources at these offsets, each once. One that only repeats what its call was sent with is none."""
        hits: list[_Hit] = []
        past = 0
        for offset in offsets:
            if offset < past:
                continue
            source, past = self._corpus.at(offset)
            if source.sent_with and test(source.call_text):
                continue
            hits.append(_Hit(source, like, test))
            if len(hits) == MAX_SOURCES:
                break
        return hits

    def _offsets(self, wanted: str, fits: Callable[[int], bool]) -> Iterator[int]:
        """Yield one place of each source where a text is and fits. A source full of places where it doesn't is left."""
        text, past, tries = self._corpus.text, 0, 0
        if not wanted or wanted in self._absent:
            return
        offset = text.find(wanted)
        if offset < 0:  # most spellings of a number are, and several of its readings share them
            self._absent.add(wanted)
        while offset >= 0:
            if offset >= past:
                _source, past = self._corpus.at(offset)
                tries = 0
            tries += 1
            if fits(offset):
                yield offset
                tries = MAX_TRIES
            offset = text.find(wanted, past if tries >= MAX_TRIES else offset + 1)

    @cached_property
    def _packed_text(self) -> str:
        return forms.compact(self._corpus.text)

    @cached_property
    def _packed(self) -> Sequence[tuple[Source, str]]:
        return [(source, forms.compact(source.text)) for source in self._corpus.sources]

    # What is doubtful about it.

    @cached_property
    def _words_of_people(self) -> str:
        return "\n".join(source.text for source in self._corpus.sources if source.kind in PERSONAL)[:MAX_PEOPLES_CHARS]

    @cached_property
    def _named(self) -> Mapping[str, Sequence[str]]:
        """Kind of identifier → those that people named."""
        named: dict[str, list[str]] = defaultdict(list)
        for identifier in sorted(forms.identifiers(self._words_of_people)):
            named[forms.kind_of(identifier)].append(identifier)
        return named

    def _doubt(self, argument: _Argument, hits: Sequence[_Hit]) -> tuple[Doubt | None, str]:
        """Return why a person should look at the value, and what they named instead of it."""
        if any(hit.source.kind in PERSONAL and hit.like != "pieces" for hit in hits):
            return None, ""
        instead = self._other_named(argument)
        worst = _worst(hits)
        if worst is not None:
            return worst, instead
        if instead:
            return "contradicts", instead
        if any(hit.source.kind in {"instructions", *PERSONAL} for hit in hits):
            return None, ""
        # One record that names no other thing is enough to trust the value.
        others = list(takewhile(bool, map(self._record_of_another, hits)))
        return ("contradicts", others[0]) if len(others) == len(hits) else (None, "")

    def _other_named(self, argument: _Argument) -> str:
        """Return what people named of the same kind, where the value is none of these."""
        if argument.numbers and argument.words & AMOUNTS:
            amounts = forms.money(self._words_of_people)
            if amounts and not amounts & argument.numbers:
                return ", ".join(f"{each:f}" for each in sorted(amounts)[:MAX_PLACES])
        label = " ".join(word.casefold() for word in sorted(argument.words - {"id", "no", "number"}, key=len)[-1:])
        of_value = forms.identifiers(argument.text) | forms.identifiers(f"{label} {argument.text}")
        for identifier in sorted(of_value):
            named = self._named.get(forms.kind_of(identifier), ())
            if named and identifier not in named:
                return self._as_written(named)
        return ""

    def _as_written(self, named: Sequence[str]) -> str:
        """Return what people named, in their own letters."""
        people = [str(source.content) for source in self._corpus.sources if source.kind in PERSONAL]
        spellings = []
        for each in named[:MAX_PLACES]:
            plain = ((text, text.casefold()) for text in people)
            holding = (text for text, folded in plain if len(text) == len(folded) and each in folded)
            text = next(holding, None)
            at = 0 if text is None else text.casefold().index(each)
            spellings.append(each if text is None else text[at : at + len(each)])
        return ", ".join(spellings)

    def _record_of_another(self, hit: _Hit) -> str:
        """Return what people named, where the value is only in records of others of that kind; empty: it is not so.

        A record is the line of a text, or the innermost object around the value that names any such thing.
        """
        others = ""
        holding = (index for index, leaf in enumerate(hit.source.leaves) if hit.test(leaf.text, leaf.name))
        for index in islice(holding, MAX_SOURCES):
            of_another = self._another_in(_record(hit.source.leaves, index, self._names_kind))
            if not of_another:
                return ""
            others = of_another
        return others

    def _names_kind(self, record: str) -> bool:
        return any(forms.kind_of(each) in self._named for each in forms.identifiers(record))

    def _another_in(self, record: str) -> str:
        identifiers = forms.identifiers(record)
        for identifier in sorted(identifiers):
            named = self._named.get(forms.kind_of(identifier), ())
            if named and identifiers.isdisjoint(named):
                return self._as_written(named)
        return ""


class _Test(Protocol):
    """Tells whether a text, of the field of that name, holds a value."""

    def __call__(self, text: str, name: str = "", /) -> bool: ...


@dataclass(frozen=True)
class _Hit:
    """A source that holds a value."""

    source: Source
    like: Likeness
    test: _Test

    @property
    def place(self) -> Place:
        source = self.source
        is_value = isinstance(source.content, str) and source.kind != "call"
        leaves = () if is_value else source.leaves
        leaf = next((each for each in leaves if self.test(each.text, each.name)), None)
        return Place(
            kind=source.kind,
            like=self.like,
            tool=source.tool,
            at="" if leaf is None else leaf.at,
            step=source.step,
            agent=source.agent,
            message_id=source.message_id,
            untrusted=source.untrusted,
        )


def _places(hits: Sequence[_Hit]) -> tuple[Place, ...]:
    return tuple(hit.place for hit in hits[:MAX_PLACES])


def _independent(hits: Sequence[_Hit]) -> bool:
    """Tell whether any source is not the agent's own call."""
    return any(hit.source.kind != "call" for hit in hits)


def _worst(hits: Sequence[_Hit]) -> Doubt | None:
    """Return the doubt about a value that these sources hold, whatever people named."""
    if not _independent(hits):
        return "nowhere"
    telling = [hit for hit in hits if hit.source.kind != "call"]
    if any(hit.like == "pieces" for hit in telling):
        return "untrusted" if any(hit.source.untrusted for hit in telling) else None
    return "untrusted" if all(hit.source.untrusted for hit in telling) else None


def _fits(text: str, wanted: str, at: int) -> bool:
    """Tell whether what begins there is the value, and not a part of a longer word, number or address."""
    if len(wanted) >= SUBSTRING_CHARS and not any(char.isdigit() or char == "@" for char in wanted):
        return True
    before, after = text[at - 1 : at] if at else "", text[at + len(wanted) : at + len(wanted) + 1]
    return not (before.isalnum() and wanted[0].isalnum()) and not (after.isalnum() and wanted[-1].isalnum())


def _holds_account(text: str, packed: str) -> bool:
    """Tell whether a text without its spaces holds this number, and not a longer one."""
    at = text.find(packed)
    before, after = text[at - 1 : at] if at > 0 else "", text[at + len(packed) : at + len(packed) + 1]
    return at >= 0 and not (before.isdigit() and packed[0].isdigit()) and not (after.isdigit() and packed[-1].isdigit())


def _test_of(wanted: str) -> _Test:
    def test(text: str, _name: str = "") -> bool:
        at = text.find(wanted)
        for _try in range(MAX_TRIES):
            if at < 0 or _fits(text, wanted, at):
                break
            at = text.find(wanted, at + 1)
        return at >= 0 and _fits(text, wanted, at)

    return test


def _record(leaves: Sequence[Leaf], index: int, names_kind: Callable[[str], bool]) -> str:
    """Return the text of the innermost object around a leaf that names a thing of a kind that people named; or empty."""
    at = leaves[index].at
    first, last = index, index + 1
    text = _named_text(leaves[index])
    while at and not names_kind(text) and len(text) <= MAX_RECORD_CHARS:
        at = at.rpartition("/")[0]
        while first > 0 and leaves[first - 1].at.startswith(f"{at}/"):
            first -= 1
        while last < len(leaves) and leaves[last].at.startswith(f"{at}/"):
            last += 1
        text = "\n".join(_named_text(leaf) for leaf in leaves[first:last])
    return text


def _named_text(leaf: Leaf) -> str:
    """Return a leaf as a text with its name before it."""
    return f"{' '.join(sorted(name_words(leaf.name), key=len))} {leaf.text}"


def _arguments(value: Any, at: str, levels: int, name: str = "") -> Iterator[_Argument | None]:
    """Yield the values of arguments that may come from somewhere; None where they can't be read."""
    match value:
        case dict() if levels:
            for key, member in value.items():
                inner = f"{at}/{escaped(key)}"
                yield from _arguments(member, inner, levels - 1, key)
        case list() if levels:
            for index, member in enumerate(value):
                yield from _arguments(member, f"{at}/{index}", levels - 1, name)
        case bool() | None:
            return
        case str() | int() | Decimal():
            if value != "":
                yield _Argument(at, name, value)
        case Ambiguous() | dict() | list():
            yield None


def _choices(schema: Mapping[str, JsonValue]) -> dict[str, set[str]]:
    """Return the values that a schema itself offers, by the name of their property."""
    choices: dict[str, set[str]] = defaultdict(set)
    definitions = schema.get("$defs")
    for level in _levels(schema):
        properties = level.get("properties")
        for name, of_property in properties.items() if isinstance(properties, dict) else ():
            for inner in _levels(of_property, definitions if isinstance(definitions, dict) else {}):
                offered = [inner.get("const"), inner.get("default")]
                listed = inner.get("enum")
                offered += listed if isinstance(listed, list) else []
                choices[name].update(str(each) for each in offered if isinstance(each, str | int | float))
    return choices


def _levels(schema: Any, definitions: Mapping[str, JsonValue] | None = None) -> Iterable[dict[str, JsonValue]]:
    """Return a schema and those inside it, without the properties of its own where definitions are followed."""
    waiting: list[Any] = [schema]
    seen = 0
    levels: list[dict[str, JsonValue]] = []
    while waiting and seen < MAX_ARGUMENTS * 10:
        each = waiting.pop()
        seen += 1
        if isinstance(each, list):
            waiting.extend(each)
        elif isinstance(each, dict):
            levels.append(each)
            reference = each.get("$ref")
            if definitions is not None and isinstance(reference, str):
                waiting.append(definitions.get(reference.removeprefix("#/$defs/"), None))
            inside = [value for name, value in each.items() if definitions is None or name != "properties"]
            waiting.extend(inner for inner in inside if isinstance(inner, dict | list))
    return levels
