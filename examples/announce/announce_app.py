"""An agent that asks a person which audience to write to, then sends an announcement that a person must approve.

It shows three things: a tool that asks a question (``interaction_tool``), a gated ``once`` tool with a preview, and a
policy file by which no one may approve a run that they started themselves. Run it with ``turngate up announce_app:app``.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from turngate import Agent, App, Limits, Preview, ToolContext, Toolkit, interaction_tool, tool

OUTBOX = Path(os.environ.get("ANNOUNCE_OUTBOX", "outbox"))


class AudienceQuestion(BaseModel):
    """The agent's question."""

    question: str


class Audience(BaseModel):
    """The person's answer. The page makes its form from this class."""

    audience: Literal["customers", "staff", "no one"]
    note: str = ""


class Announcement(BaseModel):
    """The mail to send."""

    audience: str
    subject: str = Field(max_length=120)
    text: str


class Sent(BaseModel):
    """The mail that was sent."""

    message_id: str


def letter(params: Announcement, _workspace: Path | None) -> Preview:
    """Show the operator the letter as its readers will see it."""
    return Preview(kind="text", text=f"To: {params.audience}\nSubject: {params.subject}\n\n{params.text}")


ask_audience = interaction_tool(
    name="ask_audience",
    description="Ask a person who should get the announcement.",
    params=AudienceQuestion,
    answer=Audience,
)


def post(key: str, letter_text: str) -> None:
    """Stand in for a mail service. A real one would also get the key, so that it can refuse a second copy."""
    OUTBOX.mkdir(parents=True, exist_ok=True)
    (OUTBOX / f"{key}.txt").write_text(letter_text, encoding="utf-8")


@tool(effect="once", ask=True, summary="Mail {subject} to {audience}", preview=letter)
async def send_announcement(params: Announcement, ctx: ToolContext) -> Sent:
    """Send an announcement by mail. It cannot be taken back."""
    await asyncio.to_thread(post, ctx.idempotency_key, f"{params.subject}\n\n{params.text}\n")
    return Sent(message_id=ctx.idempotency_key)


HERE = Path(__file__).parent

app = App(
    agents=[
        Agent(
            name="announcer",
            instructions="Write short, friendly announcements. Ask who they are for. Send them once.",
            toolkit=Toolkit.of(ask_audience, send_announcement),
            model=os.environ.get("TURNGATE_MODEL") or f"scripted:{HERE / 'script.yaml'}",
            limits=Limits(steps=10),
        )
    ],
    policy="policy.toml",
)
