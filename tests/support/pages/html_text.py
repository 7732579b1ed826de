"""HTML as a browser would show it."""

from __future__ import annotations

from html.parser import HTMLParser


class ShownText(HTMLParser):
    """The text of some HTML, and the names of its elements."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.tags: set[str] = set()
        self.feed(str(html))
        self.close()

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data
