"""What the commands that start a run share: which agent, which workspace, who attends it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink
from turngate.client import SyncTurngateClient
from turngate.domain.errors import ConfigurationError


class UnattendedChoice(StrEnum):
    """What becomes of the questions of a run that nobody attends."""

    DENY = "deny"
    PARK = "park"
    RULES = "rules"


def only_agent(client: SyncTurngateClient) -> str:
    """Return the one agent there is. Raises ConfigurationError naming them when there are several, or none."""
    names = [found.name for found in client.list_agents() if not found.sub_agent_of]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ConfigurationError("no worker has published an agent yet: start one with `turngate up APP`")
    raise ConfigurationError(f"there are several agents: say which with --agent, one of {', '.join(names)}")


def warn_of_shared_directory(link: ApiLink, workspace: Path) -> None:
    """Say it when a run's workspace holds Turngate's own data."""
    if link.data_dir is not None and link.data_dir.is_relative_to(workspace):
        terminal.note(
            ("note: ", "yellow"),
            f"the workspace holds Turngate's own data ({link.data_dir}), with a token that may decide requests. "
            "Tools that read files without asking can read it; to keep it apart, start Turngate with --data-dir "
            "elsewhere.",
        )
