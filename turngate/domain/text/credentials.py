"""Credentials in free text, by what they look like: one list for what people see, for logs and for words while they come. Pure.

A credential has a beginning that its issuer gives all of them (``ghp_``, ``AKIA``, ``-----BEGIN … PRIVATE KEY``), or follows a
word that says so (``password=``, ``Bearer``, ``--token``, ``user:…@`` in a URL) and has letters and digits. A password that
is a word, or what is encoded once more, looks like anything else: only a tool's declaration makes it a secret.

Every search is for a fixed text, and every match begins at one: the time is linear in the text (I14).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple


class Span(NamedTuple):
    """Where a credential is in a text."""

    start: int
    end: int


_WORD: Final = re.compile(r"[A-Za-z0-9_-]{16,}+")
_LETTERS: Final = re.compile(r"[A-Za-z0-9]{20,}+")
_STRIPE: Final = re.compile(r"(?:live|test)_[A-Za-z0-9]{10,}+")
_GITHUB: Final = re.compile(r"[pousr]_[A-Za-z0-9]{20,}+")
_SLACK: Final = re.compile(r"[abeoprs]-[A-Za-z0-9-]{10,}+")
_SHOPIFY: Final = re.compile(r"(?:at|ss|ca|pa)_[0-9a-fA-F]{20,}+")
_SQUARE: Final = re.compile(r"(?:csp|atp)-[A-Za-z0-9_-]{16,}+")
_AWS: Final = re.compile(r"[A-Z0-9]{16}(?![A-Za-z0-9])")
_HEX: Final = re.compile(r"[0-9a-f]{32}(?![A-Za-z0-9])")
_TWO_PARTS: Final = re.compile(r"[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+")
_THREE_PARTS: Final = re.compile(r"[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_.-]{8,}+")

Matcher = Callable[[str, int], re.Match[str] | None]
_BEGINNINGS: Final[tuple[tuple[str, Matcher], ...]] = (
    ("sk-", _WORD.match),
    ("sk_", _STRIPE.match),
    ("rk_", _STRIPE.match),
    ("whsec_", _LETTERS.match),
    ("gh", _GITHUB.match),
    ("github_pat_", _WORD.match),
    ("glpat-", _WORD.match),
    ("xox", _SLACK.match),
    ("xapp-", _WORD.match),
    ("npm_", _LETTERS.match),
    ("pypi-", _WORD.match),
    ("hf_", _LETTERS.match),
    ("dop_v1_", _LETTERS.match),
    ("dckr_pat_", _WORD.match),
    ("shp", _SHOPIFY.match),
    ("lin_api_", _LETTERS.match),
    ("hvs.", _WORD.match),
    ("sq0", _SQUARE.match),
    ("tskey-", _WORD.match),
    ("ya29.", _WORD.match),
    ("1//0", _WORD.match),
    ("AIza", _WORD.match),
    ("AGE-SECRET-KEY-", _WORD.match),
    ("AKIA", _AWS.match),
    ("ASIA", _AWS.match),
    ("SG.", _TWO_PARTS.match),
    ("SK", _HEX.match),
    ("key-", _HEX.match),
    ("dapi", _HEX.match),
    ("eyJ", _THREE_PARTS.match),
)
"""How tokens begin, and what follows: OpenAI and Anthropic, Stripe, GitHub, GitLab, Slack, npm, PyPI, Hugging Face, DigitalOcean,
Docker, Shopify, Linear, Vault, Square, Tailscale, Google, age, AWS, SendGrid, Twilio, Mailgun, Databricks; JWT (RFC 7519)."""

_WEBHOOKS: Final = ("hooks.slack.com/services/", "discord.com/api/webhooks/", "discordapp.com/api/webhooks/")
_WEBHOOK: Final = re.compile(r"[A-Za-z0-9/_-]{20,}+")

_KEY_BEGINS, _KEY_ENDS = "-----BEGIN ", "-----END "
_LABEL: Final = re.compile(r"-----BEGIN (?P<label>[A-Z0-9 ]{1,60}+)-----")
_DASHES: Final = "-----"
_END_LINE: Final = 80

_IN_URL: Final = re.compile(r"[^\s/@:\"'<>]{0,256}+:(?P<secret>[^\s/@\"'<>\u27e6]{1,256}+)@")
_BEARER: Final = re.compile(r"[ \t]{1,8}+(?P<secret>[A-Za-z0-9_.~+/=-]{8,}+)")
_BASIC: Final = re.compile(r"[ \t]{1,8}+(?P<secret>[A-Za-z0-9+/]{8,}+={0,2}+)")

_NAMES: Final = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "credential", "credentials", "apikey", "api_key",
    "api-key", "api key", "accesskey", "access_key", "access-key", "accountkey", "account_key", "secretkey", "secret_key",
    "secret-key", "privatekey", "private_key", "private-key", "signing_key", "encryption_key", "sessionid", "session_id",
    "cookie", "authorization",
)  # fmt: skip
"""After these words comes a credential, if it looks like one: ``DB_PASSWORD=``, ``"apiKey": "``, ``the token is``."""
_VALUE: Final = re.compile(
    r"[\"'\\]{0,4}+[ \t]{0,8}+(?P<sign>[:=]{1,2}+>?|>|is(?=[ \t]))?[ \t]{0,8}+[\"'\\]{0,4}+"
    r"(?:(?:bearer|basic|token)[ \t]{1,8}+)?(?P<secret>[A-Za-z0-9_.~+/=@%^!#*?-]{8,}+)",
    re.IGNORECASE,
)
"""What follows such a word. Without a sign in between it counts after an option: ``--api-token X``."""
_OPTION_CHARS: Final = 40
_NAME_CHARS: Final = 40
_MIN_CHARS: Final = 8
_MIN_DIFFERENT: Final = 6


def credentials_in(text: str, *, name: str = "") -> list[Span]:
    """Return where credentials are in a text, in order; none overlaps another.

    ``name``: of the member or header that has the text, which may say what it is.
    """
    if len(text) < _MIN_CHARS:
        return []
    if name:
        before = f"{name[-_NAME_CHARS:]}="
        spans = credentials_in(before + text)
        shift = len(before)
        return [Span(max(0, each.start - shift), each.end - shift) for each in spans if each.end > shift]
    return apart(_spans_in(text))


def apart(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, those that overlap as one."""
    joined: list[Span] = []
    for each in sorted(spans):
        if joined and each.start < joined[-1].end:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, each.end))
        else:
            joined.append(each)
    return joined


def replaced(text: str, spans: Sequence[Span], marks: Sequence[str]) -> str:
    """Return a text with these marks in place of the spans, which are in order."""
    pieces: list[str] = []
    last = 0
    for span, mark in zip(spans, marks, strict=True):
        pieces += [text[last : span.start], mark]
        last = span.end
    return "".join([*pieces, text[last:]])


def _spans_in(text: str) -> Iterator[Span]:
    for beginning, rest in _BEGINNINGS:
        if beginning not in text:  # this is the way of nearly all texts: it has to be short
            continue
        for at, match in _matches(text, beginning, rest, is_word=True):
            if _is_mixed(match[0]):
                yield Span(at, match.end())
    if "://" in text:
        yield from _in_urls(text)
    if _KEY_BEGINS in text:
        yield from _private_keys(text)
    yield from _after_words(text)


def _in_urls(text: str) -> Iterator[Span]:
    for beginning in _WEBHOOKS:
        for _at, match in _matches(text, beginning, _WEBHOOK.match):
            yield Span(*match.span())
    for _at, match in _matches(text, "://", _IN_URL.match):
        if match["secret"][0] not in "$<{*":
            yield Span(*match.span("secret"))


def _matches(
    text: str, beginning: str, rest: Matcher, *, within: str | None = None, is_word: bool = False
) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield where each beginning is, with the match of what follows it; the next one is looked for after that.

    ``within``: the same text in lower case, to look for the beginning in. ``is_word``: nothing may continue into it.
    """
    looked_in = text if within is None else within
    at = looked_in.find(beginning)
    while at >= 0:
        last = at + len(beginning)
        # A word continues here: were it read again from each beginning inside it, its time would grow with its square.
        match = None if is_word and _continues(text, at) else rest(text, last)
        if match is not None:
            yield at, match
            last = match.end()
        at = looked_in.find(beginning, last)


def _continues(text: str, at: int) -> bool:
    """Tell whether a word continues here, as in ``task-`` for ``sk-``, and in an encoded picture."""
    return at > 0 and (text[at - 1].isalnum() or text[at - 1] in "+-_")


def _is_mixed(text: str) -> bool:
    """Tell whether a text is no run of plain words: it has a digit, or letters of both cases."""
    return any(each.isdigit() for each in text) or (text.lower() != text != text.upper())


def _is_random(text: str) -> bool:
    """Tell whether a value looks like a credential, and not like a word, a number, a path or a placeholder."""
    if text.startswith(("/", "./", "../", "~/", "$", "<", "{")) or len(set(text)) < _MIN_DIFFERENT:
        return False
    return any(each.isdigit() for each in text) and any(each.isalpha() for each in text)


def _private_keys(text: str) -> Iterator[Span]:
    """Yield each private key in PEM (RFC 7468); one without an end takes the rest of the text."""
    at = text.find(_KEY_BEGINS)
    while at >= 0:
        begins = _LABEL.match(text, at)
        if begins is None or "PRIVATE KEY" not in begins["label"]:
            at = text.find(_KEY_BEGINS, at + 1)
            continue
        end = text.find(_KEY_ENDS, begins.end())
        closes = -1 if end < 0 else text.find(_DASHES, end + len(_KEY_ENDS), end + _END_LINE)
        last = len(text) if closes < 0 else closes + len(_DASHES)
        yield Span(at, last)
        at = text.find(_KEY_BEGINS, last)


def _after_words(text: str) -> Iterator[Span]:
    lower = _ascii_lower(text)
    for _at, match in _matches(text, "bearer", _BEARER.match, within=lower):
        if _is_mixed(match["secret"]):
            yield Span(*match.span("secret"))
    for _at, match in _matches(text, "basic", _BASIC.match, within=lower):
        if _is_user_and_password(match["secret"]):
            yield Span(*match.span("secret"))
    for name in _NAMES:
        if name not in lower:
            continue
        for at, match in _matches(text, name, _VALUE.match, within=lower):
            value = match["secret"].rstrip(".,!?")
            is_code = text[match.end() : match.end() + 1] in {"(", "["}
            is_value = match["sign"] is not None or _is_option(text, at)
            if is_value and not is_code and len(value) >= _MIN_CHARS and _is_random(value):
                yield Span(match.start("secret"), match.start("secret") + len(value))


def _is_option(text: str, at: int) -> bool:
    """Tell whether the word here is the end of a program's option: ``--api-token``."""
    words = text[max(0, at - _OPTION_CHARS) : at].split()
    return bool(words) and words[-1].startswith("--") and not text[at - 1].isspace()


def _is_user_and_password(encoded: str) -> bool:
    try:
        return b":" in base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return False


def _ascii_lower(text: str) -> str:
    """Return a text in lower case, as long as it was: some letters of other scripts become two."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(map(_lower_if_ascii, text))


def _lower_if_ascii(char: str) -> str:
    return char.lower() if char.isascii() else char


# While a text arrives: what has to wait, because more of it may make it a credential.


def unfinished_at(text: str) -> int:
    """Return where the end of a text begins that may be part of a credential, once more follows; its length: nowhere."""
    ends = [len(text), *(each.start for each in _private_keys(text) if each.end == len(text))]
    begins = text.rfind(_KEY_BEGINS)
    if begins >= 0 and len(text) - begins < _END_LINE and not _LABEL.match(text, begins):
        ends.append(begins)
    word = _last_word(text)
    if _may_become_credential(word):
        ends.append(len(text) - len(word))
    lower = _ascii_lower(text)
    ends += [
        at
        for name in (*_NAMES, "bearer", "basic")
        if (at := lower.rfind(name)) >= 0 and _OPEN.match(text, at + len(name))
    ]
    return min(ends)


def cut_credential_at(text: str) -> int | None:
    """Return where a credential begins of which a text that broke off may have only a part; None: nowhere."""
    word, lower = _last_word(text), _ascii_lower(text)
    ends = [each.start for each in _private_keys(text) if each.end == len(text)]
    if any(beginning in word for beginning, _rest in _BEGINNINGS):
        ends.append(len(text) - len(word))
    for name in (*_NAMES, "bearer", "basic"):
        last = lower.rfind(name) + len(name)
        if last >= len(name) and _OPEN.match(text, last) and text[last:].strip("\"'\\ \t:=>"):
            ends.append(last)
    return min(ends, default=None)


def _last_word(text: str) -> str:
    """Return what a text ends with, back to a character that no credential has; "": such a character."""
    match = _WORD_BACKWARDS.match(text[: -_MAX_WORD - 1 : -1])
    return "" if match is None else match[0][::-1]


def _may_become_credential(word: str) -> bool:
    if any(each in _SIGNS for each in word) or any(each.isupper() for each in word[1:]):
        return True
    if len(word) >= _SUSPICIOUS_CHARS and any(each.isdigit() for each in word):
        return True
    return bool(word) and any(
        beginning.startswith(word) or word.startswith(beginning) for beginning, _rest in _BEGINNINGS
    )


_MAX_WORD: Final = 16 * 1024
_WORD_BACKWARDS: Final = re.compile(r"[^\s\"'`,;(){}\[\]<>|\\]*+")
_SIGNS: Final = frozenset("-_=:/+@")
_SUSPICIOUS_CHARS: Final = 6
_OPEN: Final = re.compile(
    r"[\"'\\]{0,4}+[ \t]{0,8}+(?:(?:[:=]{1,2}+>?|>|is[ \t]|[ \t]|(?<=[ \t]))[ \t]{0,8}+[\"'\\]{0,4}+"
    r"(?:(?:bearer|basic|token)[ \t]{1,8}+)?[A-Za-z0-9_.~+/=@%^!#*?-]*+)?\Z",
    re.IGNORECASE,
)
