"""The template environment: autoescape forced for every template, an undefined name is an error, assets named by content."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import unicodedata
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import JsonValue

from turngate.approvals_api.http.public_address import with_public_links
from turngate.approvals_api.pages import STATIC_DIR, arguments
from turngate.approvals_api.pages.call_view import excerpt, show_arguments, show_defaults
from turngate.approvals_api.pages.file_parts import shown_file, size_in_words
from turngate.approvals_api.pages.result_text import depends_on
from turngate.domain.runs.groups import label
from turngate.domain.runs.inbox import count_words
from turngate.domain.text.diff import read_diff
from turngate.domain.text.durations import exact_span, span
from turngate.domain.text.hidden_text import marked_text, pieces
from turngate.domain.text.instants import Precision, in_utc
from turngate.domain.tools.defaults import in_short
from turngate.domain.tools.external import is_external, source_of
from turngate.store.clock import as_text, from_text
from turngate.text.changes import changes
from turngate.text.link_words import NOT_CONNECTED
from turngate.text.run_words import SENDERS_WORDS
from turngate.wire.people import display_name, named, named_rules

# Text safety: what an agent or a tool wrote is shown as it is, inert, with nothing hidden in it.
#
# Which characters a person cannot see is the rule of :mod:`turngate.domain.text.hidden_text`. Values are never Markdown and
# never linked: a URL stays text.


EXACT: Final = Markup('lang spellcheck="false" autocorrect="off" autocapitalize="none" translate="no"')
"""Attributes of a field for exact text: nothing between the keyboard and the field changes it."""
_NEWLINE = '<span class="hidden-char" title="LINE FEED">⏎</span>'
_TAB = '<span class="hidden-char" title="TAB">⇥</span>'


def visible(value: object) -> Markup:
    """Return HTML of an untrusted value: escaped, isolated in ``<bdi>``, hidden characters as ``⟨U+202E⟩`` markers.

    Newlines and tabs stay, so put it in an element with ``white-space: pre-wrap``. The only safe way to show a value. A browser
    that translates the page leaves it as it is, and a screen reader doesn't take it for English.
    """
    return Markup(f"<bdi lang translate=no>{_safe_html(str(value))}</bdi>")  # noqa: S704 - every piece was escaped


def visible_line(value: object) -> Markup:
    """Return :func:`visible` for one line: newlines and tabs are markers too, so nothing can start a line of its own."""
    text = str(value)
    return _short_line(text) if len(text) <= SHORT_LINE_CHARS else _visible_line(text)


def person(value: object) -> Markup:
    """Return :func:`visible_line` of a person's or program's name, by what a row calls them."""
    return visible_line(display_name(str(value)))


def _visible_line(text: str) -> Markup:
    html = _safe_html(text).replace("\n", _NEWLINE).replace("\t", _TAB)
    return Markup(f"<bdi lang translate=no>{html}</bdi>")  # noqa: S704 - as above, and the two markers are ours


SHORT_LINE_CHARS = 100
_short_line = lru_cache(maxsize=4_096)(_visible_line)
"""A list says the same few names of tools, agents and people again and again."""


def _safe_html(text: str) -> str:
    # Plain strings joined once: going through Markup piece by piece takes seconds for a hostile megabyte.
    return "".join(_mark(piece) if hidden else str(escape(piece)) for piece, hidden in pieces(text))


@lru_cache(maxsize=4_096)
def _mark(char: str) -> str:
    name = unicodedata.name(char, unicodedata.category(char))
    return f'<span class="hidden-char" title="{escape(name)}">⟨U+{ord(char):04X}⟩</span>'


_INSTANT_UTC = re.compile(r"(?<![\d-])(\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?) UTC(?!\w)")


def sentence(text: str) -> Markup:
    """Return :func:`ours` on one line."""
    return with_times(visible_line(named(text)))


def ours(text: str) -> Markup:
    """Return :func:`visible` of what Turngate says, such as an error: people by their names, times in the reader's zone."""
    return with_times(visible(named(text)))


def with_times(text: Markup) -> Markup:
    """Return our text, whose instants, in UTC, the script puts into the reader's zone."""
    # Between digits and "UTC" there is no markup, so what is replaced is text.
    return Markup(_INSTANT_UTC.sub(_zoned, str(text)))  # noqa: S704 - as above


def _zoned(instant: re.Match[str]) -> str:
    try:
        at = datetime.fromisoformat(f"{instant[1]}+00:00")
    except ValueError:  # the digits of no instant
        return instant[0]
    return str(_time(at, "data-minutes" if instant[1].count(":") == 1 else "", instant[0]))


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What every page shows around its content. ``last_seq``: the newest event that the content can include.

    ``operator`` None: no one is logged in, and the page has no navigation. ``grants``: the number of active ones.
    ``to_confirm``: how many changes of the rules wait for this person, an admin. ``compact``: the person chose dense pages.
    ``sound``: they chose to hear new requests. ``playground``: ``turngate dev`` serves this page.
    """

    operator: str | None = None
    form_token: str = ""
    pending: int = 0
    grants: int = 0
    to_confirm: int = 0
    role: str = ""
    last_seq: int = 0
    compact: bool = False
    sound: bool = False
    playground: bool = False
    now: datetime = field(default_factory=lambda: datetime.now(UTC))


def render(template: str, *, frame: Frame, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a page. Every value of an agent or tool in ``context`` must pass the ``visible`` or ``line`` filter."""
    html = _environment().get_template(template).render(frame=frame, **context)
    return HTMLResponse(with_public_links(html), status_code=status)


def render_block(template: str, block: str, **context: Any) -> Markup:
    """Return one block of a page, with the context that the page has; its values are escaped as there."""
    page = _environment().get_template(template)
    blank = page.new_context(context)
    # What the template imports and sets at its top is part of the context of its blocks.
    for _piece in page.root_render_func(blank):
        break
    return Markup("".join(page.blocks[block](blank)))  # noqa: S704 - the block has escaped its values


def ago(instant: str, now: datetime) -> Markup:
    """Return a ``<time>`` that says how long ago a stored instant was; the script keeps it current."""
    at = from_text(instant)
    return _time(at, "data-ago", f"{span((now - at) / timedelta(seconds=1))} ago")


def until(instant: str, now: datetime) -> Markup:
    """Return a ``<time>`` that says in how long a stored instant comes."""
    at = from_text(instant)
    return _time(at, "data-until", f"in {span((at - now) / timedelta(seconds=1))}" if at > now else "now")


def countdown(instant: str, now: datetime) -> Markup:
    """Return :func:`until` for an instant that is seconds away: the script keeps it current each second."""
    at = from_text(instant)
    return _time(
        at, "data-until data-countdown", f"in {span((at - now) / timedelta(seconds=1))}" if at > now else "now"
    )


def _time(at: datetime, kind: str, text: str) -> Markup:
    # Written out, not formatted by Markup: a list has a hundred of them, and none of it is someone else's text.
    return Markup(f'<time datetime="{as_text(at)}" title="{in_utc(at, "seconds")}" {kind}>{text}</time>')  # noqa: S704


def moment(instant: str) -> Markup:
    """Return a ``<time>`` with a stored instant's day and time."""
    at = from_text(instant)
    return _time(at, "", in_utc(at, "seconds"))


def clock(instant: str, now: datetime | None = None, *, to: Precision = "seconds") -> Markup:
    """Return a ``<time>`` with a stored instant's time of day, which stays true on a page that is never updated.

    Its day is left out if it is that of ``now``. None: the instant's own day (UTC) is on the page already.
    """
    at = from_text(instant)
    day = f"{now or at:%Y-%m-%d}"
    minutes = " data-minutes" if to == "minutes" else ""
    return _time(at, f'data-day="{day}"{minutes}', in_utc(at, to).removeprefix(f"{day} "))


def due(instant: str, now: datetime) -> Markup:
    """Return when a stored instant comes and in how long, such as ``14:03 UTC (in 9 min)``."""
    return Markup("{} ({})").format(clock(instant, now, to="minutes"), until(instant, now))


def between(start: str, end: str) -> str:
    """Return how long something took; below a second in milliseconds."""
    seconds = (from_text(end) - from_text(start)) / timedelta(seconds=1)
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else span(seconds)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        # By force, not by file name: Jinja's own choice would leave .txt and .html.j2 unescaped.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "count_words": count_words,
        "visible": visible,
        "line": visible_line,
        "person": person,
        "name_of": display_name,
        "named": named,
        "named_rules": named_rules,
        "ours": ours,
        "sentence": sentence,
        "marked": marked_text,
        "as_json": _as_json,
        "as_json_line": _as_text,
        "diff": read_diff,
        "changes_to": changes,
        "shell": shlex.join,
        "depends_on": depends_on,
        "as_text": _as_text,
        "one_line": arguments.one_line,
        "in_short": in_short,
        "arguments": show_arguments,
        "left_out": show_defaults,
        "excerpt": excerpt,
        "pretty": arguments.pretty,
        "later": is_later,
        "seconds": span,
        "exact_span": exact_span,
        "clipped": arguments.clipped,
        "argument_label": label,
        "source": _source,
        "shown_file": shown_file,
        "size": size_in_words,
    }
    environment.globals |= {
        "asset": _asset,
        "ago": ago,
        "until": until,
        "clock": clock,
        "due": due,
        "moment": moment,
        "countdown": countdown,
        "is_later": is_later,
        "between": between,
        "span": span,
        "exact": EXACT,
        "not_connected": Markup(NOT_CONNECTED),  # noqa: S704 - a constant
        "senders_words": Markup(SENDERS_WORDS),  # noqa: S704 - a constant
    }
    # Drawn once, as no value gets into them: a list has a hundred.
    drawings: Any = environment.get_template("icons.html").module
    icons = {name: drawings.icon(name) for name in drawings.shapes}
    environment.globals["icon"] = lambda name: icons.get(name, Markup())
    return environment


def _source(agent: str) -> str:
    """Return the program that makes the calls of this agent's runs; empty: a model makes them."""
    return source_of(agent) if is_external(agent) else ""


def is_later(instant: str | None, now: datetime) -> bool:
    """Tell whether a stored instant is still to come; None never is."""
    return instant is not None and from_text(instant) > now


def _as_json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _as_text(payload: JsonValue) -> str:
    """Return a JSON value as text: a string as it is, anything else as JSON."""
    return payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


@cache
def _asset(name: str) -> str:
    """Return a static file's address with its content's digest, so that a new release is never shown with old styles."""
    digest = hashlib.sha256((STATIC_DIR / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"
