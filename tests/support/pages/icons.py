"""The pages' icons as a browser writes them out: what a page may have drawn in it, and nothing else."""

from __future__ import annotations

from turngate.approvals_api.pages.templating import _environment

_MODULE = _environment().get_template("icons.html").module
ICONS = [str(_MODULE.icon(name)) for name in _MODULE.shapes]
