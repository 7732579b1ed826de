"""A writer that leaves the reading to a sub-agent: another run, with its own tools, limits and requests.

The reader's gated call lands in the same inbox, with the path ``writer/reader``. Interrupting the writer interrupts the
reader too. Run it with ``turngate up research_app:app``.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, Field

from turngate import Agent, App, Limits, Toolkit, sub_agent, tool
from turngate.toolkits.control_calls import finish

HERE = Path(__file__).parent

SHELVES = {
    "tides": "Tides follow the moon: two high waters in 24 h 50 min.",
    "archive": "The harbour's tide gauge has been read since 1897.",
}


class Shelf(BaseModel):
    """Which shelf."""

    name: str = Field(description="One of: tides, archive.")


class Page(BaseModel):
    """The shelf's text."""

    text: str


@tool(effect="read", ask=False)
async def read_shelf(params: Shelf) -> Page:
    """Read a shelf that is open to everyone."""
    return Page(text=SHELVES.get(params.name, "This shelf is empty."))


@tool(effect="read", ask=True)
async def open_archive(params: Shelf) -> Page:
    """Read from the archive. A librarian must approve."""
    return Page(text=SHELVES.get(params.name, "There is no such box."))


def model(script: str) -> str:
    """Return the real model if one is named, else the script that plays it."""
    return os.environ.get("TURNGATE_MODEL") or f"scripted:{HERE / script}"


reader = Agent(
    name="reader",
    description="Reads the library's shelves and its archive, and reports what it found.",
    instructions="Read what you need, then report facts only.",
    toolkit=Toolkit.of(read_shelf, open_archive),
    model=model("reader.yaml"),
    limits=Limits(steps=5),
)

writer = Agent(
    name="writer",
    instructions="Give the reading to the reader, then finish with one paragraph.",
    toolkit=Toolkit.of(sub_agent(reader), finish),
    model=model("writer.yaml"),
)

app = App(agents=[writer])
