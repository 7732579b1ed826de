"""A token can be bound to agents, workspaces and sources, and an external call says whether its source counts."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Boolean, Column, Text, false

revision = "0004_token_bounds"
down_revision = "0003_run_control"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the tokens of before are not bound, and the sources of their calls were only claimed."""
    op.add_column("api_tokens", Column("bounds", Text))
    op.add_column("external_calls", Column("source_counts", Boolean, nullable=False, server_default=false()))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("external_calls", "source_counts")
    op.drop_column("api_tokens", "bounds")
