"""``turngate dev``: the worker as a process of its own, which is started again when the app's files change."""
