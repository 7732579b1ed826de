"""The terminal UI (Textual): the inbox, requests and runs, live, by keys. Needs the extra ``tui``.

Stands on :mod:`turngate.client` alone, as any program of a user's would; what is shown is made harmless in
:mod:`turngate.frontends.tui.texts`. ``turngate tui`` starts it.
"""
