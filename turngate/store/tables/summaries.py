"""What stands in place of the beginning of a conversation when its model is asked."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Index, Integer, Table, text

from turngate.store.storable import StorableString, StorableText
from turngate.store.tables.metadata import metadata

# By the head of the conversation when it was made: whoever goes on from an earlier message sees what stood there.
summaries = Table(
    "summaries",
    metadata,
    Column("head_message_id", StorableString(64), primary_key=True),
    # The newest message that it stands for; and the conversation's first one, which is sent before it.
    Column("covers", StorableString(64), nullable=False),
    Column("root_message_id", StorableString(64), nullable=False),
    Column("run_id", StorableString(64), nullable=False),
    Column("step", Integer, nullable=False),
    # summary: a model wrote it; trim: it only says that something is left out.
    Column("kind", StorableString(16), nullable=False),
    # Made because the provider had refused the conversation as it was.
    Column("forced", Boolean, nullable=False, server_default=text("false")),
    # The whole text of the message that is sent, so that a later release sends the same.
    Column("text", StorableText, nullable=False),
    Column("model", StorableText, nullable=False, server_default=""),
    Column("input_tokens", Integer, nullable=False, server_default="0"),
    Column("output_tokens", Integer, nullable=False, server_default="0"),
    Column("tokens_before", Integer, nullable=False),
    Column("tokens_after", Integer, nullable=False),
    # A result among them was shown in part, so the tool that reads the rest is still offered.
    Column("clipped", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", StorableText, nullable=False),
    Index("ix_summaries_run_id", "run_id", "step"),
)

# Forks that are to begin with a summary of the past they share, until the worker that begins them has written it.
summaries_wanted = Table(
    "summaries_wanted",
    metadata,
    Column("run_id", StorableString(64), primary_key=True),
    Column("created_at", StorableText, nullable=False),
)
