"""Any model: what watchers see of a response while it is made, and what the loop knows of its models and context."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it."""
    _add_deltas()
    _add_external_calls()
    _add_outcomes()
    _add_summaries()
    _add_routing()
    _add_judgements()


def downgrade() -> None:
    """Take it away again."""
    _drop_judgements()
    _drop_routing()
    _drop_summaries()
    _drop_external_calls()
    _drop_outcomes()
    _drop_deltas()


def _add_deltas() -> None:
    """What watchers are shown of responses that are still being made."""
    op.create_table(
        "deltas",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deltas")),
    )
    op.create_index("ix_deltas_run_id", "deltas", ["run_id", "step", "n"])


def _drop_deltas() -> None:
    op.drop_table("deltas")


def _add_outcomes() -> None:
    """Who interrupted a run, whether it goes round in circles, and what its sub-agents used.

    Of runs that ended before, the log of events says who interrupted them.
    """
    op.add_column("runs", sa.Column("ended_by", sa.Text(), nullable=True))
    op.add_column("steps", sa.Column("trail", sa.Text(), nullable=True))
    op.create_table(
        "used_below",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost_micros", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("tool_calls", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_used_below")),
    )
    by = "json_extract(events.payload, '$.by')"
    if op.get_bind().dialect.name == "postgresql":
        by = "events.payload::json ->> 'by'"
    op.execute(
        f"UPDATE runs SET ended_by = (SELECT NULLIF({by}, '') FROM events "  # noqa: S608 - one of the two texts above
        "WHERE events.run_id = runs.id AND events.type = 'run.ended' ORDER BY events.run_seq DESC LIMIT 1) "
        "WHERE runs.status = 'interrupted'"
    )


def _drop_outcomes() -> None:
    op.drop_table("used_below")
    with op.batch_alter_table("steps") as batch:
        batch.drop_column("trail")
    with op.batch_alter_table("runs") as batch:
        batch.drop_column("ended_by")


def _add_external_calls() -> None:
    """Calls that a program outside runs itself."""
    op.create_table(
        "external_calls",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("tool_call_id", sa.String(length=255), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False),
        sa.Column("wanted_by", sa.String(length=64), nullable=True),
        sa.Column("running_for", sa.String(length=64), nullable=True),
        sa.Column("deadline_at", sa.Text(), nullable=True),
        sa.Column("report", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_external_calls_run_id")),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_external_calls")),
    )


def _drop_external_calls() -> None:
    op.drop_table("external_calls")


def _add_summaries() -> None:
    """What stands in place of the beginning of a long conversation, and the runs that are to begin with a summary."""
    op.create_table(
        "summaries",
        sa.Column("head_message_id", sa.String(length=64), nullable=False),
        sa.Column("covers", sa.String(length=64), nullable=False),
        sa.Column("root_message_id", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("forced", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), server_default="", nullable=False),
        sa.Column("input_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tokens_before", sa.Integer(), nullable=False),
        sa.Column("tokens_after", sa.Integer(), nullable=False),
        sa.Column("clipped", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("head_message_id", name=op.f("pk_summaries")),
    )
    op.create_index("ix_summaries_run_id", "summaries", ["run_id", "step"], unique=False)
    op.create_table(
        "summaries_wanted",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_summaries_wanted")),
    )


def _drop_summaries() -> None:
    op.drop_table("summaries_wanted")
    op.drop_table("summaries")


def _add_routing() -> None:
    """Who chose a run's model, for which one it stands in, which was asked in each step, and what there is to choose from."""
    op.add_column("runs", sa.Column("model_chosen_by", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("fell_back_from", sa.Text(), nullable=True))
    op.add_column("steps", sa.Column("model_spec", sa.Text(), nullable=True))
    op.create_table(
        "model_names",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("published_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_names")),
    )


def _drop_routing() -> None:
    op.drop_table("model_names")
    with op.batch_alter_table("steps") as batch:
        batch.drop_column("model_spec")
    with op.batch_alter_table("runs") as batch:
        batch.drop_column("fell_back_from")
        batch.drop_column("model_chosen_by")


def _add_judgements() -> None:
    """What the judge said of calls, before anything follows from it."""
    op.create_table(
        "judgements",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("tool_call_id", sa.String(length=255), nullable=False),
        sa.Column("judgement", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "tool_call_id", name=op.f("pk_judgements")),
    )
    op.create_index("ix_judgements_created_at", "judgements", ["created_at"])


def _drop_judgements() -> None:
    op.drop_table("judgements")
