"""Text of an agent or tool, on every page, in every field: no element, no attribute, no link, nothing hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest
from fastapi.routing import APIRoute
from support.pages.html_forms import PostedPage
from support.pages.icons import ICONS
from support.planted.hostile_texts import ADDED, IN_JSON, IN_RAW_JSON, MARK, SOME, TEXTS, joined, tamed
from support.planted.pages import STATES, pages_of
from support.planted.text import PIXEL, Filling
from temporalio.client import Client

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.problems import problem_response
from turngate.approvals_api.pages.templating import visible, visible_line
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.settings import ApiSettings
from turngate.cli import terminal
from turngate.cli.follow.request import show_request
from turngate.cli.terminal import out
from turngate.domain.text.hidden_text import has_hidden, is_hidden, marked_text, pieces
from turngate.store.database import Database
from turngate.wire.requests import RequestDetail

NO_PAGES = {
    *("/livez", "/readyz", "/audit/export", "/runs/{run_id}/result.txt"),
    *("/login/oidc", "/login/oidc/callback", "/requests/{request_id}/reveal"),
    *("/requests/waiting", "/policy/rule/means"),
}
"""Addresses of files and probes, those that lead elsewhere, and two that show the pages of the states ``bulk`` and ``rule``."""
TEXT_ONLY = {"title", "option", "textarea"}
"""Elements that hold text and no elements, so that nothing in them can be isolated by one."""
READ_ALOUD = {"aria-label", "title", "alt", "placeholder"}
"""Attributes that are shown to people."""
VOID = {"meta", "link", "input", "br", "hr", "img"}
DRAWN = {"svg", "g", "path", "rect", "circle", "line", "text", "title", "a"}
"""Elements that our own pictures and icons are made of: shapes, words and links, none that loads, runs or holds HTML."""
DRAWN_WITH = {
    "class", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "rx", "width", "height", "viewbox", "d", "text-anchor",
    "href", "tabindex", "role", "aria-hidden", "aria-label", "focusable",
}  # fmt: skip
OWN_TEXTS = {"textarea source", "textarea input", "textarea notes"}
"""Texts that people write and get back to change: rules, tasks, notes. A form that holds hidden characters says so."""
MARKER = re.compile(r'<span class="hidden-char" title="[A-Za-z0-9 ()-]*">(?:⟨U\+[0-9A-F]{4,6}⟩|⏎|⇥)</span>')
"""What stands for a hidden character; there are so many that reading each as an element would take seconds."""


class Page(HTMLParser):
    """A page as a browser reads it: its elements with their attributes, and its texts with the elements around them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.drawn: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, tuple[str, ...]]] = []
        self._open: list[str] = []
        self.feed(MARKER.sub("", html).replace("\r\n", "\n").replace("\r", "\n"))
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "svg" or "svg" in self._open:
            self.drawn.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute is given twice: {attrs}"
        if tag not in VOID:
            # A textarea counts with its name: the text of an admin's own rules is not an agent's.
            more = {"textarea": "name", "option": "translate"}.get(tag, "")
            self._open.append(f"{tag} {dict(attrs).get(more)}" if more else tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().partition(" ")[0] == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((data, tuple(self._open)))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the elements with the names of their attributes."""
        return [(tag, tuple(sorted(attributes))) for tag, attributes in self.elements]


def hostile(texts: dict[str, str]) -> tuple[str, str, str]:
    """What fills a column, a text inside JSON, and one inside a call's arguments."""
    return joined(texts), joined(texts | IN_JSON), joined(texts | IN_JSON | IN_RAW_JSON)


ICON_ELEMENTS = [each for icon in ICONS for each in Page(icon).elements]


@dataclass(frozen=True)
class Drawn:
    """The pages by the names of their states. ``harmless``: with the same texts made harmless; empty in the short suite."""

    hostile: Mapping[str, Page]
    harmless: Mapping[str, Page]
    requests: Sequence[RequestDetail]


async def pages_with(texts, template, folder):
    """Return every page with these texts in each field, and some requests as a terminal gets them."""
    names = ("approval", "diff", "command", "raw", "edited")
    async with pages_of(Filling(*texts), template, folder) as served:
        pages = {name: Page(await served.html(state)) for name, state in STATES.items()}
        async with served.database.read() as conn:
            return pages, [await request_detail(conn, f"rq_{name}") for name in names]


@pytest.fixture(
    scope="module", params=[pytest.param(SOME, id="some"), pytest.param(TEXTS, id="all", marks=pytest.mark.exhaustive)]
)
async def drawn(request, sqlite_template, tmp_path_factory):
    """Every page with hostile texts in each field; in the long suite with all texts, and with the same made harmless."""
    folder, texts = tmp_path_factory.mktemp("hostile"), hostile(request.param)
    pages, requests = await pages_with(texts, sqlite_template, folder / "hostile")
    harmless = {}
    if request.param is TEXTS:
        harmless, _requests = await pages_with(tuple(map(tamed, texts)), sqlite_template, folder / "harmless")
    return Drawn(pages, harmless, requests)


@pytest.mark.parametrize("name", STATES)
async def test_hostile_text_is_only_text(drawn, name):
    """On every page in every state, it adds no element and no attribute to those for harmless text; all addresses are local.

    Every hidden character is spelled out wherever people read, and each text is in an element that isolates it.
    """
    page = drawn.hostile[name]
    if drawn.harmless:
        assert page.shape == drawn.harmless[name].shape
    check_elements(page)
    check_texts(page)


def check_elements(page: Page) -> None:
    """Assert that no element of the page loads, runs or styles anything, and that pictures are made of shapes alone."""
    for tag, attributes in page.drawn:
        assert tag in DRAWN
        assert set(attributes) <= DRAWN_WITH, attributes
        if attributes.get("class") == "icon" or (tag == "path" and "class" not in attributes):
            assert (tag, attributes) in ICON_ELEMENTS
    for tag, attributes in page.elements:
        assert ADDED not in {tag, *attributes}, attributes
        assert tag not in {"iframe", "object", "embed", "base", "style", "math", "foreignobject"}
        if tag == "img":  # one stored image has its declared type, and is embedded in the page
            assert attributes["src"] == f"data:image/png;base64,{PIXEL}"
        assert not [each for each in attributes if each.startswith("on") or each == "style"]
        for address in ("href", "xlink:href", "src", "action", "formaction"):
            if tag == "img" and address == "src":
                continue
            assert (attributes.get(address) or "/")[:1] in {"/", "#", "?"}, attributes
            assert not (attributes.get(address) or "").startswith("//")


@pytest.mark.parametrize(
    "html",
    [
        "<svg onload=owned()></svg>",
        "<svg><script>owned()</script></svg>",
        "<svg><image href='//evil/x.png'></image></svg>",
        "<svg><a href='javascript:owned()'><text>x</text></a></svg>",
        "<svg><a xlink:href='javascript:owned()'></a></svg>",
        "<svg><a href='//evil'></a></svg>",
        "<svg><use href='#x'></use></svg>",
        "<svg><foreignObject><p>x</p></foreignObject></svg>",
        "<svg><animate attributeName=href to='javascript:owned()'></animate></svg>",
        "<svg><set attributeName=onclick to='owned()'></set></svg>",
        "<svg><rect style='fill: red'></rect></svg>",
        "<svg><rect fill='url(//evil)'></rect></svg>",
        "<svg><style>*{}</style></svg>",
    ],
)
def test_a_hostile_picture_is_refused(html):
    """The check itself works: of a picture it lets pass only shapes, words and links into the site."""
    check_elements(Page("<svg class='x'><a href='/runs'><rect width='1'></rect></a></svg>"))
    with pytest.raises(AssertionError):
        check_elements(Page(html))


def check_texts(page: Page) -> None:
    """Assert that no text or attribute that people read hides a character, and that each hostile text is isolated."""
    for text, around in page.texts:
        if has_hidden(text) and not OWN_TEXTS & set(around):
            assert [hex(ord(each)) for each in set(text) if is_hidden(each)] == [], (around, text[:200])
        assert MARK not in text or "option None" not in around, f"a browser may translate {text[:200]}"
        if MARK in text and not TEXT_ONLY & {each.partition(" ")[0] for each in around}:
            # A text of a picture is isolated by itself: the style sheet says so of each.
            assert "bdi" in around or ("svg" in around and around[-1] == "text"), (around, text[:200])
    for tag, attributes in page.elements:
        if tag == "textarea" or (MARK in (attributes.get("value") or "") and _is_seen(tag, attributes)):
            # Neither a browser's translation nor a keyboard's correction changes what is sent.
            assert (attributes.get("translate"), attributes.get("autocorrect")) == ("no", "off"), attributes
        visible_attributes = {
            each for each in attributes if each in READ_ALOUD or (each == "value" and _is_seen(tag, attributes))
        }
        for each in visible_attributes:
            hidden = [hex(ord(char)) for char in attributes[each] or "" if is_hidden(char)]
            assert hidden == [], (tag, each, (attributes[each] or "")[:200])


def _is_seen(tag, attributes):
    return tag == "input" and attributes.get("type") != "hidden"


async def test_the_hostile_texts_are_on_the_pages(drawn):
    """The test above sees pages full of such text: most states have it, in many places."""
    places = {name: sum(MARK in text for text, _around in page.texts) for name, page in drawn.hostile.items()}
    bare = {name for name, count in places.items() if count == 0}
    assert bare <= {name for name, state in STATES.items() if state.empty or not state.logged_in} | {"invalid"}
    assert places["approval"] > 40
    assert places["run completed"] > 40


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_each_text_can_still_be_read(text):
    """Visible characters appear as they were written, in order; none is dropped or merged."""
    for show in (visible, visible_line):
        page = Page(str(show(text)))
        seen = "".join(each for each, _around in page.texts)
        expected = "".join(piece for piece, hidden in pieces(text) if not hidden)
        expected = expected.translate(dict.fromkeys(map(ord, " \n\t")))
        remaining = iter(seen)
        assert all(each in remaining for each in expected)
    assert not [each for each in marked_text(text) if is_hidden(each)]


@pytest.mark.exhaustive
async def test_the_form_survives_hostile_texts(sqlite_template, tmp_path):
    """Sent back untouched, the edit form of hostile arguments under a hostile schema changes nothing at all."""
    filling = Filling(*hostile(TEXTS))
    async with pages_of(filling, sqlite_template, tmp_path / "form") as served:
        state = STATES["approval"]
        form = PostedPage(await served.html(state)).form("edit")
        answer = await served.client.post("/requests/rq_approval", data=form.sent)
    assert "Nothing was changed" in answer.text


def test_a_problem_document_hides_nothing():
    """A problem that quotes hostile text is JSON of its own type, and a reader of its source sees every character."""
    text = hostile(TEXTS)[2]
    answer = problem_response(409, "x", text, {"errors": [{"message": text}], "n": 1})
    assert answer.headers["content-type"] == "application/problem+json"
    assert not [each for each in answer.body.decode() if is_hidden(each)]
    document = json.loads(answer.body)
    assert document["detail"] == document["errors"][0]["message"] == text


async def test_a_terminal_shows_a_request_and_hides_nothing(drawn, capsys):
    """Printed by the command line, a request can send the terminal only visible characters."""
    out.cache_clear()
    for detail in drawn.requests:
        show_request(detail)
        terminal.line((detail.tool_name, "bold"), detail.agent_words)
        terminal.table(["a", "b"], [[detail.tool_name, (detail.input, "red")]])
    output = capsys.readouterr().out
    out.cache_clear()
    assert output.count(MARK) > 50
    assert [hex(ord(each)) for each in set(output) if is_hidden(each)] == []


async def test_every_page_has_a_state(sqlite: Database) -> None:
    """Each address that a browser can open is among the states of these tests, which axe looks at, too; or it is no page."""
    nowhere = await Client.connect("127.0.0.1:1", lazy=True)
    app = create_app(database=sqlite, gateway=Gateway(nowhere), settings=ApiSettings())
    routes = [each for each in app.routes if isinstance(each, APIRoute) and "GET" in each.methods]
    states = {path.split("?")[0] for state in STATES.values() for path in (state.path, state.to) if path}
    without = {each.path for each in routes if not any(map(each.path_regex.fullmatch, states))}
    assert {path for path in without if not path.startswith("/api/")} == NO_PAGES
