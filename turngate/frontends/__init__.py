"""Programs on the public client: terminal UI, editors, event lines.

Each uses :mod:`turngate.client` alone: it can do what its token may do, and nothing else (I10). The core never imports them.
"""
