"""The terminal UI (Textual): the inbox, requests and runs, live, by keys. Needs the extra ``tui``.

Uses :mod:`turngate.client` alone, as a user's own program would. What is shown is made harmless in
:mod:`turngate.frontends.tui.texts`. ``turngate tui`` starts it.
"""
