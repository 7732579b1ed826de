"""Any model: what watchers see of a response while it is made, and what the loop knows of its models and context."""

from __future__ import annotations

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it."""


def downgrade() -> None:
    """Take it away again."""
