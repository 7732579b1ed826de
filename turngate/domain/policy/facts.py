"""What a rule may look at in one call, and the three answers a matcher gives.

Pure: reading a command line and following symlinks are handed in as functions, so that rules can be judged anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, JsonValue
from pydantic_core import to_jsonable_python

from turngate.domain.crashes import report_crash
from turngate.domain.origins.origin import Origins
from turngate.domain.policy.command_line import Commands, Unparsable
from turngate.domain.text.json_pointers import AMBIGUOUS, pointer_of
from turngate.domain.tools.defaults import CHANGES, Defaults, as_read, completed

Match = Literal["yes", "no", "unclear"]
"""``unclear`` never helps a call: an allow rule does not match, a deny or ask rule asks."""


LOOK_FAILED: Final = "rules could not look at the call"
"""How a crash is reported that leaves rules without an answer."""


def all_of(answers: Iterable[Match]) -> Match:
    """Return the match of conditions that must all hold: one ``no`` settles it, else one ``unclear``."""
    distinct = set(answers)
    if "no" in distinct:
        return "no"
    return "unclear" if "unclear" in distinct else "yes"


def any_of(answers: Iterable[Match]) -> Match:
    """Return the match of conditions of which one must hold; for no conditions: ``no``."""
    distinct = set(answers)
    if "yes" in distinct:
        return "yes"
    return "unclear" if "unclear" in distinct else "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a matcher found. ``reason``: why, for people who ask for an explanation; never shown to the model."""

    match: Match
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedPath:
    """Where a path leads. Both absolute, without ``.``, ``..``, doubled or trailing slashes; None: cannot be known.

    ``lexical``: by its text alone. ``real``: with every symlink followed; parts that do not exist are taken literally.
    """

    lexical: str | None
    real: str | None


CommandReader = Callable[[str], Commands | Unparsable]
PathResolver = Callable[[str, str | None], ResolvedPath]
"""(path as the tool gets it, the run's workspace or None) → where it leads. Must not raise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFacts:
    """One call, as rules see it. ``arguments``: decoded once by ``decode_arguments``; ``workspace``: the run's, or None.

    ``decoded``: the arguments as the tool reads them, where that differs; None: it doesn't, or is not known. ``origins``: where
    the arguments come from, as they are written; None: not known. ``defaults``: in what the tool gets something else than is
    written.
    """

    arguments: JsonValue
    workspace: str | None
    read_command: CommandReader
    resolve_path: PathResolver
    decoded: JsonValue | None = None
    origins: Origins | None = None
    defaults: Defaults = ()

    @property
    def views(self) -> list[tuple[JsonValue, JsonValue]]:
        """What a rule judges: the arguments, and the same with what they leave out.

        As they are written; also as the tool reads them, where that differs; also with the defaults that its server claims.
        """
        changes = tuple(each for each in self.defaults if each.source in CHANGES)
        added = tuple(each for each in self.defaults if each.source not in CHANGES)
        plain = replace(self, defaults=added)
        views = [(self.arguments, plain.whole)]
        if changes:
            views.append((replace(self, defaults=changes).whole, self.whole))
        if self.decoded is not None:
            views.append((self.decoded, plain.whole_decoded))
        if any(each.source == "server" for each in added):
            views.append((self.arguments, plain.whole_as_claimed))
        return views

    @property
    def whole(self) -> JsonValue:
        """The arguments as the tool gets them. A value that isn't known here is ambiguous."""
        whole: JsonValue = completed(
            self.arguments, as_read([each for each in self.defaults if each.source != "server"])
        )
        return whole

    @property
    def whole_decoded(self) -> JsonValue | None:
        """``decoded`` with what the arguments leave out; None where that is None."""
        added = tuple(each for each in self.defaults if each.source not in CHANGES)
        return (
            None if self.decoded is None else replace(self, arguments=self.decoded, decoded=None, defaults=added).whole
        )

    @property
    def whole_as_claimed(self) -> JsonValue:
        """The arguments also with the defaults that only the tool's server states."""
        whole: JsonValue = completed(self.arguments, as_read(self.defaults))
        return whole

    def read_as(self, params: object) -> CallFacts:
        """Return the same with the decoded parameters, or any value that is no model where they are not known."""
        try:
            view = decoded_view(self.arguments, params)
        except Exception as error:  # noqa: BLE001 - a property of the author's failed: no rule can tell what it would see
            report_crash("parameters could not be read", error, parameters=type(params).__name__)
            view = cast("JsonValue", AMBIGUOUS)
        same = repr(view) == repr(self.arguments)
        more = _by_field_name(params, self.defaults) if isinstance(params, BaseModel) and self.defaults else ()
        if same and not more:
            return self
        return replace(self, decoded=None if same else view, defaults=(*self.defaults, *more))


def _by_field_name(params: BaseModel, defaults: Defaults) -> Defaults:
    """Return the defaults of fields that are written under another name, under their own: a rule may name either."""
    by_place = {each.at: each for each in defaults}
    names = [
        (name, field.validation_alias) for name, field in type(params).model_fields.items() if field.validation_alias
    ]
    pairs = [(pointer_of([name]), by_place.get(pointer_of([alias]))) for name, alias in names if isinstance(alias, str)]
    return tuple(each.model_copy(update={"at": at}) for at, each in pairs if each is not None and at not in by_place)


_PLAIN: Final = (str, bool, int, float, Decimal, type(None))


def decoded_view(arguments: JsonValue, params: object) -> JsonValue:
    """Return the arguments with each field that the call sets, by the field's own name and with its decoded value.

    A rule names ``/account``; the tool may read that field by an alias (``acct``), from a text (``"501"``), or elsewhere.

    What rules can't compare (a date, a secret) stays as it was written, if it was written under that name. Without decoded
    parameters, or of arguments that are no object, the arguments are returned as they are.
    """
    if not isinstance(params, BaseModel) or not isinstance(arguments, dict):
        return arguments
    view: dict[str, Any] = dict(arguments)
    for name in params.model_fields_set:
        value = getattr(params, name)
        if name in view and not _is_comparable(value):
            continue
        view[name] = _plain(value, arguments.get(name))
    return view


def _is_comparable(value: object) -> bool:
    return isinstance(value, (*_PLAIN, list, dict, BaseModel))


def _plain(value: object, written: JsonValue) -> JsonValue:
    if isinstance(value, BaseModel):
        return decoded_view(written if isinstance(written, dict) else {}, value)
    if isinstance(value, list):
        same = written if isinstance(written, list) and len(written) == len(value) else [None] * len(value)
        return [_plain(each, was) for each, was in zip(value, same, strict=True)]
    if isinstance(value, dict):
        old = written if isinstance(written, dict) else {}
        return {str(key): _plain(each, old.get(str(key))) for key, each in value.items()}
    if type(value) in _PLAIN:
        return cast("JsonValue", value)
    return cast("JsonValue", to_jsonable_python(value, fallback=str))
