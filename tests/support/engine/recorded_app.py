"""An app with every way a call can be answered, for tests that record a run of it and play that again."""

from __future__ import annotations

import json

from pydantic import BaseModel

from turngate import Agent, App, Policy, Rule, Toolkit, tool
from turngate.toolkits.coding import ask_person


class Amount(BaseModel):
    cents: int


class Name(BaseModel):
    name: str


@tool(effect="read", ask=False)
async def look(params: Name) -> str:
    """Look something up."""
    return f"seen {params.name}"


@tool(effect="once", ask=True)
async def pay(params: Amount) -> dict[str, int]:
    """Pay an amount."""
    return {"paid": params.cents}


@tool(effect="once", ask=True)
async def pay_slowly(params: Amount) -> dict[str, int]:
    """Pay an amount that no one decides about in time."""
    return {"paid": params.cents}


@tool(effect="once", ask=True)
async def pay_jointly(params: Amount) -> dict[str, int]:
    """Pay an amount that two have to agree to."""
    return {"paid": params.cents}


AGENT = Agent(
    name="payer",
    instructions="Pay.",
    toolkit=Toolkit.of(look, pay, pay_slowly, pay_jointly, ask_person),
    model="scripted:none",
)
HOUR = Rule(name="an-hour", verdict="ask", tools=["pay_slowly"], expires_after_seconds=3600)
TWO = Rule(name="two", verdict="ask", tools=["pay_jointly"], quorum=2, people=["ann", "cy"])
app = App(agents=[AGENT], policy=Policy(rule=[HOUR, TWO]))


def pays(call_id: str, cents: int, tool_name: str = "pay") -> dict[str, str]:
    # Two spaces: the text the model sent is not what any encoder writes.
    return {"tool": tool_name, "id": call_id, "raw_input": f'{{"cents":  {cents}}}'}


FIRST = [
    {
        "text": "I pay.",
        "calls": [
            {"tool": "look", "id": "seen", "input": {"name": "Ann"}},
            pays("yes", 1),
            pays("edited", 2),
            pays("no", 3),
            pays("late", 4, "pay_slowly"),
            pays("both", 6, "pay_jointly"),
            {"tool": "ask_person", "id": "asked", "input": {"question": "Which one?"}},
        ],
    },
    {"malformed": "a brace is missing"},
    {"text": "Once more.", "calls": [pays("broken", 5) | {"raw_input": '{"cents": '}]},
    {"text": "Done."},
]
SECOND = [{"calls": [{"tool": "look", "id": "again", "input": {"name": "Bo"}}]}, {"text": "Seen."}]
SCRIPT = json.dumps({"runs": [{"responses": FIRST}, {"responses": SECOND}]})
