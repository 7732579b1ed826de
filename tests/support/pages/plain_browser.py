"""A browser without scripts and styles: it opens pages over HTTP, follows links and sends a page's own forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import urljoin

import httpx
from support.pages.html_forms import PostedPage
from support.pages.html_text import ShownText


@dataclass
class PlainBrowser:
    """A window on one page. ``status`` and ``url``: of the answer that it shows."""

    client: httpx.AsyncClient
    html: str = ""
    url: str = ""
    status: int = 0

    async def open(self, path: str) -> PlainBrowser:
        """Open an address of the site."""
        return self._show(await self.client.get(path, follow_redirects=True))

    @property
    def text(self) -> str:
        """What a person reads, its white space collapsed."""
        return " ".join(ShownText(self.html).text.split())

    def section(self, name: str) -> str:
        """What a person reads in the section with this id."""
        return " ".join(ShownText(self.html.partition(f'id="{name}"')[2].partition("</section>")[0]).text.split())

    def value(self, control: str) -> str:
        """What a control holds that is sent with some form."""
        return next(form.sent[control] for form in PostedPage(self.html).forms if control in form.sent)

    async def press(self, label: str, typed: Mapping[str, str] | None = None) -> PlainBrowser:
        """Type into the controls of the form that has this button, and press it. ``typed``: control → text.

        Without a button of just this name, it is the first whose name begins with these words.
        """
        typed = typed or {}
        ways = [(form, button) for form in PostedPage(self.html).forms for button in form.buttons]
        able = [(form, button) for form, button in ways if typed.keys() <= form.known]
        named = [each for each in able if each[1].label == label]
        matches = named or [each for each in able if each[1].label.startswith(f"{label} ")]
        assert matches, f"no form has the button {label!r} and the controls {list(typed)}"
        form, button = matches[0]
        sent = {**form.sent, **{name: text.replace("\n", "\r\n") for name, text in typed.items()}}
        if button.name:
            sent[button.name] = button.value
        at = urljoin(self.url, button.action or form.attributes.get("action") or "")
        if form.attributes.get("method") == "post":
            return self._show(await self.client.post(at, data=sent, follow_redirects=True))
        return self._show(await self.client.get(at, params=sent, follow_redirects=True))

    async def follow(self, words: str) -> PlainBrowser:
        """Follow the first link with these words."""
        address = next(address for link, address in _Links(self.html).links if words in " ".join(link.split()))
        return await self.open(urljoin(self.url, address))

    def _show(self, answer: httpx.Response) -> PlainBrowser:
        self.html, self.url, self.status = answer.text, str(answer.url), answer.status_code
        return self


class _Links(HTMLParser):
    """The links of a page: ``links`` has their words and addresses."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self._is_open = False
        self.links: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.append(("", dict(attrs).get("href") or ""))
            self._is_open = True

    def handle_endtag(self, tag: str) -> None:
        self._is_open = self._is_open and tag != "a"

    def handle_data(self, data: str) -> None:
        if self._is_open:
            words, address = self.links[-1]
            self.links[-1] = (words + data, address)
