"""Commands in what a command prints, with the options that lead each of them to the same stack.

Who printed them was led there by ``--data-dir`` or ``--url``; typed as they are, they would look in this directory.
"""

from __future__ import annotations

import re
from typing import Any, Final

from turngate.cli.api_link import ApiLink

PROGRAM: Final = "turngate"
INLINE: Final = re.compile(rf"`({PROGRAM} [^`]+)`")


def led(command: str, link: ApiLink, root: Any) -> str:
    """Return a command with those of the link's options that it has; of another program: as it is.

    ``root``: the command ``turngate`` itself (typer's groups have no public class).
    """
    words, place, node = command.split(" "), 1, root
    if words[0] != PROGRAM:
        return command
    while place < len(words) and words[place] in getattr(node, "commands", {}):
        node = node.commands[words[place]]
        node = node.load() if hasattr(node, "load") else node
        place += 1
    accepted = {option for each in node.params for option in each.opts}
    return f"{' '.join(words[:place])}{link.options_among(accepted)} {' '.join(words[place:])}".rstrip()


def led_text(text: str, link: ApiLink, root: Any) -> str:
    """Return a text with each command between backticks as :func:`led` returns it."""
    return INLINE.sub(lambda match: f"`{led(match[1], link, root)}`", text)
