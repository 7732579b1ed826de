"""The task queue whose workers published a model's name, so that they can take back what they no longer declare."""

from __future__ import annotations

from typing import NoReturn

from alembic import op
from sqlalchemy import Column, String, Text, text

revision = "0007_model_name_queues"
down_revision = "0006_commits_announced"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table again, because its key changes; whose the names of before are isn't known."""
    former = op.get_bind().execute(text("SELECT name, kind, model, published_at FROM model_names")).mappings().all()
    op.drop_table("model_names")
    model_names = op.create_table(
        "model_names",
        Column("task_queue", String(200), primary_key=True),
        Column("name", String(200), primary_key=True),
        Column("kind", String(16), nullable=False),
        Column("model", Text, nullable=False),
        Column("published_at", Text, nullable=False),
    )
    op.bulk_insert(model_names, [{"task_queue": "", **row} for row in former])


def downgrade() -> NoReturn:
    """Refuse: Turngate restores a backup in place of migrating down."""
    raise NotImplementedError("restore a backup in place of migrating down")
