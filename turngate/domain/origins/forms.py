"""The forms in which one value is written: spacing and case, numbers, dates, URLs, identifiers.

Pure, and linear in the text: each expression takes a bounded number of characters at each place. Nothing here knows paraphrase.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Final, Literal
from urllib.parse import unquote

MAX_FOLDED_CHARS: Final = 50_000
"""Of a text whose ligatures and wide letters are taken for plain ones; one of them may become 18 characters."""
_SPELLINGS: Final = dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff", "") | dict(
    zip("\u2010\u2011\u2012\u2013\u2014\u2212\u2018\u2019\u201c\u201d", "------''\"\"", strict=True)
)
"""What is written otherwise in some texts: characters that no one sees, dashes and quotes."""
_UNITS: Final = ("eur", "usd", "gbp", "chf", "%")

_NUMBER: Final = re.compile(r"\d{1,18}+(?:[., ']\d{3}(?!\d)){0,4}(?:[.,]\d{1,9})?")
_AMOUNT: Final = r"\d{1,12}+(?:[.,']\d{3}(?!\d)){0,3}(?:[.,]\d\d)?"
_CURRENCY: Final = r"(?:[€$£]|eur|usd|gbp|chf)"
_CURRENCY_AS_WRITTEN: Final = r"(?:[€$£]|EUR|USD|GBP|CHF)"
_MONEY: Final = re.compile(rf"{_CURRENCY} ?{_AMOUNT}(?!\w)|{_AMOUNT} ?{_CURRENCY}(?!\w)")
_LABELLED: Final = re.compile(r"([a-z]{3,20}+)(?: (?:no\.?|number|id))? ?#?:? ?(\d{4,18}+)(?![\w-]|[.,]\d)")
_IDENTIFIER: Final = re.compile(r"[a-z]{1,8}[-_#/]?\d{1,18}+(?:[-_/]?[a-z\d]{1,12}+){0,6}+(?!\w)")
_DATE: Final = re.compile(
    r"\d{4}-\d\d-\d\d"
    r"|\d{1,2}[./]\d{1,2}[./]\d{4}"
    r"|\d{1,2}(?:st|nd|rd|th|\.)? [a-z]{3,9}+\.? \d{4}"
    r"|[a-z]{3,9}+\.? \d{1,2}(?:st|nd|rd|th)?,? \d{4}"
)
_MONTHS: Final = {
    name: number
    for number, names in enumerate(
        ("jan january", "feb february", "mar march", "apr april", "may", "jun june", "jul july", "aug august",
         "sep sept september", "oct october", "nov november", "dec december"), 1
    )
    for name in names.split()
}  # fmt: skip
_WORDS: Final = re.compile(r"[a-z]+|\d+")
_URL_START: Final = re.compile(r"(?:[a-z][a-z0-9+]{0,15}:)?//(?:[^/@\s]{0,100}@)?|www\.")
_SEPARATORS: Final = re.compile(r"[\s/:?&=,;|<>()\[\]{}\"'`#!]+")
_PARTICULAR: Final = re.compile(
    r"https?://[^\s\"'<>)\]}]{3,500}"
    r"|[\w.+-]{1,64}+@[\w-]{1,64}+(?:\.[\w-]{1,30}+){1,5}+"
    r"|(?<!\w)[A-Z]{1,8}[-_#]\d{2,18}+(?:[-_/][A-Za-z\d]{1,12}+){0,4}+(?!\w)"
    r"|(?<!\w)[A-Z]{2}\d{2} ?[A-Z\d]{4}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?(?!\w)"
    rf"|(?<!\w){_CURRENCY_AS_WRITTEN} ?{_AMOUNT}(?!\w)"
    rf"|(?<!\w){_AMOUNT} ?{_CURRENCY_AS_WRITTEN}(?!\w)"
    r"|(?<![\w.,-])\d{6,18}+(?![\w-]|[.,]\d)"
)


def normalised(text: str) -> str:
    """Return a text without differences of case, spacing, width and dashes, and without characters that no one sees."""
    plain = text if text.isascii() else _spelled(text)  # all that most texts have beyond ASCII is dashes and quotes
    if not plain.isascii():
        form: Literal["NFKC", "NFC"] = "NFKC" if len(text) <= MAX_FOLDED_CHARS else "NFC"
        plain = _spelled(unicodedata.normalize(form, text))
    elif plain.isprintable() and "  " not in plain:  # most of what tools return, and most of what there is to do
        return plain.strip().lower()
    return " ".join(plain.casefold().split())


def _spelled(text: str) -> str:
    """Return a text with what is written otherwise in some texts as it is in most."""
    for char, plain in _SPELLINGS.items():
        if char in text:  # replacing takes a tenth of str.translate's time, and most texts have none of them
            text = text.replace(char, plain)
    return text


def compact(text: str) -> str:
    """Return a normalised text without what people put between the digits of account and telephone numbers."""
    packed = text.encode("utf-8", "surrogatepass").translate(None, b" -.()/+")
    return packed.decode("utf-8", "surrogatepass")


def numbers(text: str) -> Iterator[Decimal]:
    """Yield the numbers of a normalised text, each reading of one that may mean several."""
    for match in _NUMBER.finditer(text):
        if _is_apart(text, *match.span()):
            yield from readings(match.group())


def begins_number(text: str, at: int, number: Decimal) -> bool:
    """Tell whether this number begins at this place of a normalised text."""
    match = _NUMBER.match(text, at)
    return match is not None and _is_apart(text, *match.span()) and number in readings(match.group())


def beginnings(number: Decimal) -> list[str]:
    """Return how a number may begin when it is written: its whole part, with and without marks between the thousands."""
    if abs(number.adjusted()) > MAX_DIGITS:
        return []
    digits = f"{abs(number):f}".partition(".")[0]
    grouped = f"{int(digits):,}" if len(digits) > _THOUSANDS else digits
    return list(dict.fromkeys([digits, *(grouped.replace(",", mark) for mark in ",. '")]))


def _is_apart(text: str, start: int, end: int) -> bool:
    """Tell whether a number there is no part of a word, an identifier, a date or a longer number."""
    before, after = text[max(0, start - 2) : start], text[end : end + 3]
    if before and (before[-1].isalnum() or before[-1] in "_./,"):
        return False
    if before.endswith("-") and before[0].isalnum() and len(before) > 1:
        return False
    if after[:1] in ("-", "/", ".", ",") and after[1:2].isdigit():
        return False
    return not (after[:1].isalnum() or after[:1] == "_") or after.startswith(_UNITS)


def readings(written: str) -> set[Decimal]:
    """Return what a written number may mean: ``1.234`` is a thousand or one, by who writes it. Empty: it is no number."""
    digits = written.strip().lstrip("+").replace("'", "").replace(" ", "")
    marks = [char for char in digits if char in ".,"]
    if not digits or len(digits) > MAX_DIGITS or not digits.lstrip("-").replace(".", "").replace(",", "").isdecimal():
        return set()
    if not marks:
        return {Decimal(digits)}
    whole, _mark, rest = digits.rpartition(marks[-1])
    fraction = Decimal(f"{whole.replace(',', '').replace('.', '') or '0'}.{rest or '0'}")
    thousands = Decimal(digits.replace(",", "").replace(".", ""))
    if len(marks) > 1:
        return {fraction if len(set(marks)) > 1 else thousands}
    return {fraction, thousands} if len(rest) == _THOUSANDS else {fraction}


_THOUSANDS: Final = 3
MAX_DIGITS: Final = 40


def money(text: str) -> set[Decimal]:
    """Return the amounts of a normalised text that have a currency."""
    amounts: set[Decimal] = set()
    for match in _MONEY.finditer(text):
        amounts |= readings("".join(char for char in match.group() if char.isdigit() or char in ".,'"))
    return amounts


def dates(text: str) -> Iterator[str]:
    """Yield the days of a normalised text (ISO 8601), both readings of ``03/04/2026``."""
    for match in _DATE.finditer(text):
        yield from _days(match.group())


def ends_of_day(day: str) -> tuple[str, ...]:
    """Return texts of which one is in each date that is this day: all of it, or its year after what comes before a year."""
    year = day[:4]
    return day, f" {year}", f".{year}", f"/{year}"


def has_day_around(text: str, day: str, at: int) -> bool:
    """Tell whether a date with one of :func:`ends_of_day` at this place of a normalised text is this day."""
    around = text[max(0, at - _LONGEST_DATE) : at + len(day)]
    return day[-2:].lstrip("0") in around and day in dates(around)


_LONGEST_DATE: Final = 30


def days_of(value: str) -> set[str]:
    """Return the days that a normalised value names, if it is nothing but a date, or a date with a time."""
    match = _DATE.match(value)
    if match is None:
        return set()
    rest = value[match.end() :]
    is_time = not rest or (rest[0] in "t " and not rest.strip("tz0123456789:.+- "))
    return set(_days(match.group())) if is_time else set()


def _days(written: str) -> Iterator[str]:
    month = next((_MONTHS[word] for word in _WORDS.findall(written) if word in _MONTHS), None)
    fields = [int(word) for word in _WORDS.findall(written) if word.isdigit()]
    if month is not None:
        fields = [fields[-1], month, fields[0]]
        orders = [fields] if len(fields) == _DATE_FIELDS else []
    elif len(fields) != _DATE_FIELDS:
        orders = []
    elif "-" in written:
        orders = [fields]
    else:
        orders = [[fields[2], fields[1], fields[0]], [fields[2], fields[0], fields[1]]]
    for year, number, day in orders:
        try:
            yield date(year, number, day).isoformat()
        except ValueError:
            continue


_DATE_FIELDS: Final = 3


def url_forms(value: str) -> list[str]:
    """Return how a URL may be written, without its scheme; empty: the normalised value is none."""
    start = _URL_START.match(value)
    if start is None:
        return []
    bare = value[start.end() :].removeprefix("www.").split("#")[0]
    host, slash, path = bare.partition("/")
    bare = (host.removesuffix(":443").removesuffix(":80") + slash + path).rstrip("/")
    return list(dict.fromkeys(form for form in (bare, normalised(unquote(bare))) if "." in form))


def identifiers(text: str) -> set[str]:
    """Return what names one thing among others of its kind in a normalised text, such as ``a-113`` or ``order 4711``."""
    labelled = {f"{match[1]} {match[2]}" for match in _LABELLED.finditer(text)}
    whole_words = (match.group() for match in _IDENTIFIER.finditer(text) if _begins_word(text, match.start()))
    return labelled | {each for each in whole_words if len(each) > _SHORTEST}


_SHORTEST: Final = 3


def _begins_word(text: str, start: int) -> bool:
    return start == 0 or not (text[start - 1].isalnum() or text[start - 1] in "_-/.#@")


def kind_of(identifier: str) -> str:
    """Return an identifier with a ``9`` for its digits: two of one kind differ in nothing else."""
    kind = "".join("9" if char.isdigit() else char for char in identifier)
    while "99" in kind:
        kind = kind.replace("99", "9")
    return kind


def pieces(text: str) -> list[str]:
    """Return the words between separators of a normalised value: of a path its folders, of a URL its host and parameters."""
    return [each for piece in _SEPARATORS.split(text) if len(each := piece.strip(".-_")) > 1]


def particulars(text: str) -> Iterator[str]:
    """Yield what a prose text (not normalised) names exactly: URLs, addresses, identifiers, accounts, amounts, long numbers."""
    for match in _PARTICULAR.finditer(text):
        yield match.group().rstrip(".,;:")
