"""What the commands that start a run share: which agent, which workspace, who attends it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink
from turngate.client import SyncTurngateClient
from turngate.domain.errors import ConfigurationError


class UnattendedChoice(StrEnum):
    """What happens to the questions of a run that no one attends."""

    DENY = "deny"
    PARK = "park"
    RULES = "rules"


def only_agent(client: SyncTurngateClient) -> str:
    """Return the name of the only agent. Raises ConfigurationError when there are several, which it names, or none."""
    names = [agent.name for agent in client.list_agents() if not agent.sub_agent_of]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ConfigurationError("there is no agent yet: start a worker that publishes one with `turngate up APP`")
    raise ConfigurationError(f"there are several agents: choose one with --agent: {', '.join(names)}")


def warn_of_shared_directory(link: ApiLink, workspace: Path) -> None:
    """Print a note when a run's workspace contains Turngate's own data."""
    if link.data_dir is not None and link.data_dir.is_relative_to(workspace):
        terminal.note(
            ("note: ", "yellow"),
            f"the workspace contains Turngate's own data ({link.data_dir}), with a token that can decide requests. "
            "Tools that read files without approval can read it. To keep it apart, start Turngate with --data-dir "
            "outside the workspace.",
        )
