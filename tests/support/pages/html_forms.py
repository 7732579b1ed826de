"""What a browser sends for a page: a small reader of forms, by the rules of the HTML standard.

Sections: 4.10.5 (values of controls, and what a browser does to them), 4.10.21 (the entries of a form), 13.2.3.5
(line ends of a document).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

BUTTONS = {"approve": "shown", "edit-json": "raw"}
"""Action → the value of its button ``as``."""


@dataclass
class Button:
    """A button that submits. ``name`` and ``value`` are sent when it is pressed; ``name`` may be empty.

    ``action``: where it sends its form; empty: where the form says.
    """

    name: str
    value: str
    label: str = ""
    action: str = ""


@dataclass
class Form:
    """One form. ``sent``: control name → text with CRLF line ends, in the order of the page, without any button.

    ``known``: the names of all its controls, those that aren't ticked included.
    """

    attributes: dict[str, str | None]
    sent: dict[str, str] = field(default_factory=dict)
    buttons: list[Button] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def pressing(self, label: str) -> dict[str, str]:
        """What is sent when the button of this label is pressed."""
        (button,) = [each for each in self.buttons if each.label == label]
        return {**self.sent, **({button.name: button.value} if button.name else {})}


class PostedPage(HTMLParser):
    """The forms of a page; controls outside of any form count to a first, nameless one."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.forms = [Form({})]
        self._area: str | None = None
        self._select: tuple[str, bool] | None = None
        self._button: Button | None = None
        assert "\x00" not in html, "a browser would change U+0000"
        html.encode()  # half a surrogate pair could not be sent
        self._elsewhere: list[tuple[str, str, str | None]] = []
        self._buttons_elsewhere: list[tuple[str, Button]] = []
        self.feed(html.replace("\r\n", "\n").replace("\r", "\n"))
        self.close()
        by_id = {each.attributes.get("id"): each for each in self.forms}
        for owner, name, value in self._elsewhere:
            by_id[owner].known.add(name)
            if value is not None:
                by_id[owner].sent[name] = value
        for form in self.forms:
            form.known |= form.sent.keys()
        for owner, button in self._buttons_elsewhere:
            by_id[owner].buttons.append(button)

    def form(self, action: str) -> Form:
        """The form whose hidden control ``action`` has this value, or one that has a button for it, with that pressed."""
        matches = [each for each in self.forms if each.sent.get("action") == action]
        if not matches:  # one form approves a call in several ways
            edits = [each for each in self.forms if each.sent.get("action") == "edit"]
            matches = [replace(each, sent={**each.sent, "as": BUTTONS[action]}) for each in edits if action in BUTTONS]
        (match,) = matches
        return match

    @property
    def sent(self) -> dict[str, str]:
        """What the controls outside of any form hold."""
        return self.forms[0].sent

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        match tag:
            case "form":
                self.forms.append(Form(attributes))
            case "input":
                self._input(attributes)
            case "textarea":
                self._area = attributes["name"] or ""
                self._put(self._area, "")
            case "select":
                self._select = (attributes["name"] or "", False)
            case "option" if self._select is not None and not self._select[1]:
                name = self._select[0]
                chosen = "selected" in attributes
                if chosen or name not in self.forms[-1].sent:
                    self._put(name, attributes["value"] or "")
                self._select = (name, chosen)
            case "button" if attributes.get("type", "submit") == "submit":
                name, value, label, action = (
                    attributes.get(each) or "" for each in ("name", "value", "aria-label", "formaction")
                )
                self._button = Button(name, value, label, action)
                if (owner := attributes.get("form")) is not None:
                    self._buttons_elsewhere.append((owner, self._button))
                elif "aria-hidden" not in attributes:
                    self.forms[-1].buttons.append(self._button)

    def handle_endtag(self, tag: str) -> None:
        match tag:
            case "form":
                # What follows is in no form.
                self.forms.append(Form({}))
            case "textarea" if self._area is not None:
                # The first line end after the tag is not part of the text.
                name, self._area = self._area, None
                self._put(name, self.forms[-1].sent[name].removeprefix("\n"))
            case "select":
                self._select = None
            case "button":
                self._button = None

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self.forms[-1].sent[self._area] += data
        elif self._button is not None and not self._button.label:
            self._button.label = data.strip()

    def _input(self, attributes: dict[str, str | None]) -> None:
        name, value = attributes.get("name"), attributes.get("value") or ""
        is_sent = True
        match attributes.get("type", "text"):
            case "radio" | "checkbox":
                is_sent = "checked" in attributes
            case "text":
                value = value.replace("\r", "").replace("\n", "")
        if not name:
            return
        if owner := attributes.get("form"):
            self._elsewhere.append((owner, name, value if is_sent else None))
        elif is_sent:
            self._put(name, value)
        else:
            self.forms[-1].known.add(name)

    def _put(self, name: str, text: str) -> None:
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        self.forms[-1].sent[name] = lines if name == self._area else lines.replace("\n", "\r\n")
