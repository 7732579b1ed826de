"""What a run has of its own in place of its agent's and its app's."""

from __future__ import annotations

from turngate.wire.view import View


class WorldView(View):
    """A run's own world; what is None is as its agent or app has it.

    ``agent``: whose instructions and tools these are. ``tools``: those of its toolkit that the run has. ``policy``: TOML, in
    place of the app's rules, the stored ones and every grant, with its ``policy_digest``.
    """

    agent: str
    digest: str
    instructions: str | None
    tools: list[str] | None
    policy: str | None
    policy_digest: str | None
