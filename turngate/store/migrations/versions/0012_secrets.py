"""Calls of tools that declare secrets keep the declaration; requests about them keep what people see of the arguments."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, Text, text

revision = "0012_secrets"
down_revision = "0011_summary"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Calls that were planned before are shown as they were."""
    op.add_column("calls", Column("manifest", Text))
    op.add_column("requests", Column("masked_input", Text))
    has_manifest = text("manifest IS NOT NULL")
    op.create_index(
        "ix_calls_with_secrets", "calls", ["run_id"], sqlite_where=has_manifest, postgresql_where=has_manifest
    )


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
