"""Agents, conversations, runs with their steps, calls and executions."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, Table, false, text

from turngate.store.storable import StorableString, StorableText
from turngate.store.tables.metadata import SequenceNumber, metadata

agents = Table(
    "agents",
    metadata,
    Column("name", StorableString(64), primary_key=True),
    Column("version", StorableString(64), nullable=False),
    Column("model", StorableText, nullable=False),
    Column("description", StorableText, nullable=False),
    Column("limits", StorableText, nullable=False),
    Column("tools", StorableText, nullable=False),
    Column("task_queue", StorableText, nullable=False),
    Column("published_at", StorableText, nullable=False),
    # Names of the agents whose calls it answers, when the app does not offer it to people itself.
    Column("sub_agent_of", StorableText, nullable=False, server_default=""),
    # What happens to a message that is sent to a live run: queue, inject or supersede.
    Column("while_running", StorableString(16), nullable=False, server_default="queue"),
)

# What a model may be called, as the workers of each task queue published it: kind is profile, declared or provider.
model_names = Table(
    "model_names",
    metadata,
    Column("task_queue", StorableString(200), primary_key=True),
    Column("name", StorableString(200), primary_key=True),
    Column("kind", StorableString(16), nullable=False),
    Column("model", StorableText, nullable=False),
    Column("published_at", StorableText, nullable=False),
)

conversations = Table(
    "conversations",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("head_message_id", StorableString(64)),
    Column("created_at", StorableText, nullable=False),
    # Its data key, wrapped by a key of ``key_ring``; NULL: nothing of it is encrypted. Without it nothing can be read again.
    Column("data_key", StorableText),
)

messages = Table(
    "messages",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("parent_id", StorableString(64), ForeignKey("messages.id")),
    Column("conversation_id", StorableString(64), ForeignKey("conversations.id"), nullable=False),
    Column("run_id", StorableString(64)),
    Column("step", Integer),
    Column("role", StorableString(16), nullable=False),
    Column("parts", StorableText, nullable=False),
    Column("provider_options", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_messages_conversation_id", "conversation_id"),
)

runs = Table(
    "runs",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("conversation_id", StorableString(64), ForeignKey("conversations.id"), nullable=False),
    Column("agent", StorableString(64), nullable=False),
    Column("agent_version", StorableString(64), nullable=False),
    Column("model", StorableText, nullable=False),
    Column("workspace", StorableText),
    Column("task", StorableText, nullable=False),
    Column("status", StorableString(16), nullable=False),
    Column("reason", StorableText, nullable=False, server_default=""),
    Column("error_class", StorableString(64), nullable=False, server_default=""),
    # Who interrupted it.
    Column("ended_by", StorableText),
    Column("step", Integer, nullable=False, server_default="0"),
    Column("input_message_id", StorableString(64), nullable=False),
    Column("head_message_id", StorableString(64), nullable=False),
    Column("started_by", StorableText, nullable=False),
    Column("idempotency_key", StorableString(255), unique=True),
    Column("request_fingerprint", StorableString(64), nullable=False, server_default=""),
    Column("created_at", StorableText, nullable=False),
    Column("ended_at", StorableText),
    Column("event_count", Integer, nullable=False, server_default="0"),
    Column("event_hash", StorableString(64), nullable=False, server_default=""),
    # A sub-agent's run: the call that it answers, and the agents above it with itself last, joined by "/".
    Column("parent_run_id", StorableString(64)),
    Column("parent_tool_call_id", StorableString(255)),
    Column("path", StorableText, nullable=False, server_default=""),
    # A fork: the run and the closed step of it whose past it shares. A retry: the run that it continues in its conversation.
    Column("forked_from_run_id", StorableString(64)),
    Column("forked_from_step", Integer),
    Column("is_retry", Boolean, nullable=False, server_default=false()),
    # Whether someone watches the inbox while it runs and, if no one does, what happens to what would be asked.
    Column("attended", Boolean, nullable=False, server_default=text("true")),
    Column("unattended_asks", StorableString(16), nullable=False, server_default="park"),
    # Since when, by whom and why it is paused; NULL while it is not.
    Column("paused_at", StorableText),
    Column("paused_by", StorableText),
    Column("pause_reason", StorableText, nullable=False, server_default=""),
    # The digest of its overrides; and for a dry run, the run whose recorded results answer its calls.
    Column("world", StorableString(64)),
    Column("replay_of_run_id", StorableString(64)),
    # What its responses took, in tokens and millionths of a currency; what was granted beyond its budgets (JSON).
    Column("tokens_used", BigInteger, nullable=False, server_default="0"),
    Column("cost_micros", BigInteger, nullable=False, server_default="0"),
    Column("extensions", StorableText, nullable=False, server_default="[]"),
    # The schedule that opened it.
    Column("schedule_id", StorableString(64)),
    # Who switched its model; the model that could not be used, so that this one replaces it.
    Column("model_chosen_by", StorableText),
    Column("fell_back_from", StorableText),
    # Since when, by whom and why it is to stop; NULL while it is not.
    Column("interrupted_at", StorableText),
    Column("interrupted_by", StorableText),
    Column("interrupt_reason", StorableText, nullable=False, server_default=""),
    # How often someone has interrupted, paused or resumed it, and how many of these its workflow knows of.
    Column("control", Integer, nullable=False, server_default="0"),
    Column("control_seen", Integer, nullable=False, server_default="0"),
    # Keys the digests of its content, and goes with the content; empty: they are plain. Its calls and requests have it, too.
    Column("nonce", StorableText, nullable=False, server_default=""),
    # The trace that it belongs to (turngate.domain.runs.trace); NULL: it begins one, whose id follows from the run's.
    Column("traceparent", StorableString(55)),
    # The newest row of ``erasures`` about its conversation; NULL: nothing was erased.
    Column("erasure_id", StorableString(64)),
    # One live run per conversation, held by the database itself.
    Index(
        "uq_runs_live_conversation",
        "conversation_id",
        unique=True,
        sqlite_where=text("status = 'running'"),
        postgresql_where=text("status = 'running'"),
    ),
    Index("ix_runs_created_at_id", "created_at", "id"),
    Index("ix_runs_agent", "agent", "created_at", "id"),
    # Those that failed or were interrupted: few of many, and what one looks for.
    Index(
        "ix_runs_stopped",
        "created_at",
        "id",
        sqlite_where=text("status IN ('failed', 'interrupted')"),
        postgresql_where=text("status IN ('failed', 'interrupted')"),
    ),
    Index("ix_runs_parent_run_id", "parent_run_id"),
    # Erasing and retention look up all runs of a conversation; the one above has the live ones only.
    Index("ix_runs_conversation_id", "conversation_id"),
    Index(
        "ix_runs_forked_from_run_id",
        "forked_from_run_id",
        "created_at",
        sqlite_where=text("forked_from_run_id IS NOT NULL"),
        postgresql_where=text("forked_from_run_id IS NOT NULL"),
    ),
    Index("ix_runs_schedule_id", "schedule_id"),
)

# What was sent to a live run. Not a message yet: it becomes one when that run, or the next one, takes it.
queued_messages = Table(
    "queued_messages",
    metadata,
    Column("id", StorableString(64), primary_key=True),
    Column("run_id", StorableString(64), nullable=False),
    Column("text", StorableText, nullable=False),
    Column("while_running", StorableString(16), nullable=False),
    Column("sent_by", StorableText, nullable=False),
    Column("fingerprint", StorableString(64), nullable=False),
    Column("created_at", StorableText, nullable=False),
    Column("taken_at", StorableText),
    Index("ix_queued_messages_run_id", "run_id", "created_at", "id"),
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", StorableString(64), ForeignKey("runs.id"), primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("assistant_message_id", StorableString(64), nullable=False),
    Column("results_message_id", StorableString(64)),
    Column("model", StorableText, nullable=False),
    Column("finish_reason", StorableString(32), nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("plan", StorableText),
    Column("created_at", StorableText, nullable=False),
    Column("closed_at", StorableText),
    # The message that tells the model why its response could not be used, in place of results.
    Column("corrective", StorableText),
    # The spec that was asked: a profile's name or provider:name, where "model" is what the provider calls it.
    Column("model_spec", StorableText),
    # Whether the run makes progress (JSON of a Trail), of a closed step.
    Column("trail", StorableText),
    # When the request to the model was sent whose response this is; NULL: no model was asked.
    Column("asked_at", StorableText),
)

# What the runs below a run used, where it has any: sub-agents', and theirs. Apart from the run's own row, which its own
# transactions lock in other orders.
used_below = Table(
    "used_below",
    metadata,
    Column("run_id", StorableString(64), primary_key=True),
    Column("tokens", BigInteger, nullable=False, server_default="0"),
    Column("cost_micros", BigInteger, nullable=False, server_default="0"),
    Column("tool_calls", BigInteger, nullable=False, server_default="0"),
)

calls = Table(
    "calls",
    metadata,
    Column("run_id", StorableString(64), ForeignKey("runs.id"), primary_key=True),
    Column("tool_call_id", StorableString(255), primary_key=True),
    Column("step", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("tool_name", StorableText, nullable=False),
    Column("input", StorableText, nullable=False),
    Column("repeat_key", StorableString(64), nullable=False),
    Column("disposition", StorableString(16), nullable=False),
    Column("verdict", StorableText, nullable=False),
    Column("digest", StorableString(64), nullable=False),
    Column("policy_version", StorableString(64), nullable=False),
    Column("effect", StorableString(16), nullable=False),
    Column("result", StorableText),
    Column("edited_input", StorableText),
    Column("settled_at", StorableText),
    # What a control call asks of the run; the run that answers for a sub-agent; what people are shown of call and result; the
    # digest of the whole result where the model is shown a part. All NULL when there is none.
    Column("signal", StorableText),
    Column("child_run_id", StorableString(64)),
    Column("presentation", StorableText),
    Column("whole_result", StorableString(64)),
    # In a dry run: the call of the other run whose recorded result this one was given. NULL there: it diverged.
    Column("recorded_call_id", StorableString(255)),
    # The declaration of its tool (JSON of ToolManifest), if that declares secrets: by it they are masked for people.
    Column("manifest", StorableText),
    # What the text that runs leaves out (JSON of Defaults), so that the tool's own values are used; NULL: nothing, or not known.
    Column("defaults", StorableText),
    Column("nonce", StorableText, nullable=False, server_default=""),
    Index(
        "ix_calls_with_secrets",
        "run_id",
        sqlite_where=text("manifest IS NOT NULL"),
        postgresql_where=text("manifest IS NOT NULL"),
    ),
    Index("ix_calls_run_id_step", "run_id", "step", "position"),
    Index("ix_calls_repeat_key", "run_id", "repeat_key"),
)

executions = Table(
    "executions",
    metadata,
    Column("run_id", StorableString(64), ForeignKey("runs.id"), primary_key=True),
    Column("tool_call_id", StorableString(255), primary_key=True),
    Column("state", StorableString(16), nullable=False),
    Column("digest", StorableString(64), nullable=False),
    # The decision this execution redeemed; unique, so an approval is redeemed at most once (I3). NULL: allowed by policy.
    Column("decision_id", StorableString(255), unique=True),
    Column("idempotency_key", StorableString(64), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("partial_output", StorableText, nullable=False, server_default=""),
    Column("started_at", StorableText, nullable=False),
    Column("ended_at", StorableText),
    # The process that runs it, and its build.
    Column("worker", StorableText),
    Column("build", StorableText),
    # Equal for calls that mean the same (turngate.domain.digest.repeat_key), by the arguments that ran. Empty: not known.
    Column("repeat_key", StorableString(64), nullable=False, server_default=""),
    Index("ix_executions_repeat_key", "repeat_key", "state", "started_at"),
)

# Results too large to be shown to a model, whole, by the SHA-256 of their text.
whole_results = Table(
    "whole_results",
    metadata,
    Column("digest", StorableString(64), primary_key=True),
    Column("text", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
)

# Overrides of runs, as JSON.
worlds = Table(
    "worlds",
    metadata,
    Column("digest", StorableString(64), primary_key=True),
    Column("content", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
)

# Progress of running tools: for watchers only. Not in the audit log, and bounded per call.
progress = Table(
    "progress",
    metadata,
    Column("id", SequenceNumber, primary_key=True, autoincrement=True),
    Column("run_id", StorableString(64), nullable=False),
    Column("tool_call_id", StorableString(255), nullable=False),
    Column("n", Integer, nullable=False),
    Column("payload", StorableText, nullable=False),
    Column("created_at", StorableText, nullable=False),
    Index("ix_progress_run_id", "run_id", "tool_call_id", "n"),
)


# External calls: another program runs them itself.


# One call per run. ``tool``, ``input``, ``context`` and ``conversation`` never change; the rest says who runs it, and with which
# result.
external_calls = Table(
    "external_calls",
    metadata,
    Column("run_id", StorableString(64), ForeignKey("runs.id"), primary_key=True),
    Column("tool_call_id", StorableString(255), nullable=False),
    Column("tool", StorableText, nullable=False),
    Column("input", StorableText, nullable=False),
    Column("context", StorableText, nullable=False),
    # The attempt that wants to start it, and the one that may run it: the second is written in the redemption itself.
    Column("wanted_by", StorableString(64)),
    Column("running_for", StorableString(64)),
    Column("deadline_at", StorableText),
    Column("report", StorableText),
    # Equal for calls of one sender that mean the same, and within the same turn where one was named (I12).
    Column("turn", StorableString(255)),
    Column("repeat_key", StorableString(64), nullable=False, server_default=""),
    # Whether rules and grants for the source may allow the call: who sent it is bound to the source, or is a person.
    Column("source_counts", Boolean, nullable=False, server_default=false()),
    # What the sender says of the conversation with the call, as JSON; NULL: nothing.
    Column("conversation", StorableText),
    Index("ix_external_calls_repeat_key", "repeat_key"),
)


# What replaces the beginning of a conversation in requests to its model.


# By the head of the conversation at the time: a run that continues from an earlier message gets the original messages.
summaries = Table(
    "summaries",
    metadata,
    Column("head_message_id", StorableString(64), primary_key=True),
    # The newest message that it replaces; and the conversation's first one, which is sent before it.
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
