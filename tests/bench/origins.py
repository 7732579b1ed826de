"""Figure: what finding the origins of a call's arguments costs a step, after a conversation of 400 messages.

The processor time of this thread: reading the messages as sources, normalising them, and looking up eight arguments.
"""

from __future__ import annotations

import json
import time

from bench.figures import Figure, MeasurementError, milliseconds, percentile
from bench.scale import Scale

from turngate.domain.conversation.messages import Message, TextPart, ToolCallPart, ToolResultPart
from turngate.domain.origins.sources import SentMessage, sources_of
from turngate.domain.origins.trace import Tracer
from turngate.domain.tools.results import Ok

MESSAGES = 400
GOAL_SECONDS = 0.010
TASK = "Refund 49.00 EUR for order A-113 to the account on file."
ARGUMENTS = json.dumps(
    {
        "order": "A-113",
        "amount": "49.00",
        "cents": 4900,
        "account": "LT12 1000 0111 0100 1000",
        "placed": "2026-05-12",
        "email": "anyone@elsewhere.example",
        "path": "/orders/A-113/refund",
        "note": "The customer wrote twice, and order A-999 was never paid; see the first mail about the parcel.",
    }
)
"""One argument of each kind: in the task, in a result, and nowhere."""
PROSE = "The customer wrote that the parcel came late, the street was wrong, and the invoice had been paid before \u2013 twice. "


def measure(scale: Scale) -> list[Figure]:
    """Return the figure. Raises MeasurementError if the planted account isn't found to be nowhere."""
    sent, samples = _conversation(), []
    for _sample in range(scale.pages):
        began = time.thread_time()
        origins = Tracer(sources_of(sent, untrusted={"read_mail"})).trace(ARGUMENTS)
        samples.append(time.thread_time() - began)
        if "/account" not in {each.at for each in origins.doubtful} or not origins.complete:
            raise MeasurementError("the origins of a call were not found")
    reached = percentile(samples, 0.95) <= GOAL_SECONDS
    name = f"origins of 8 arguments after {MESSAGES} messages, processor time"
    return [
        Figure(name=name, ours=milliseconds(samples), goal="p95 ≤ 10 ms", reached=reached, samples={"ours": samples})
    ]


def _conversation() -> list[SentMessage]:
    """A task, then calls and results in turn, of 1.1 KB together each; every tenth result is a mail in plain text."""
    sent = [SentMessage(message=Message(role="user", parts=(TextPart(text=TASK),)), author="task", id="task")]
    for number in range(MESSAGES // 2):
        tool = "read_mail" if number % 10 == 0 else "lookup_order"
        call = ToolCallPart(tool_call_id=f"c{number}", tool_name=tool, input=json.dumps({"order": f"A-{500 + number}"}))
        value = (
            {"value": PROSE * 9}
            if tool == "read_mail"
            else {"orders": [_order(4 * number + each) for each in range(4)]}
        )
        result = ToolResultPart(tool_call_id=call.tool_call_id, tool_name=tool, result=Ok(value=value))
        sent += [
            SentMessage(message=Message(role="assistant", parts=(call,)), step=number, id=f"call{number}"),
            SentMessage(message=Message(role="tool", parts=(result,)), step=number, id=f"result{number}"),
        ]
    return sent


def _order(number: int) -> dict[str, str | int]:
    return {
        "id": f"A-{500 + number}",
        "total": f"{number % 900}.{number % 90 + 10}",
        "cents": number * 137 % 99_991,
        "placed": f"2026-0{number % 9 + 1}-1{number % 10}",
        "iban": f"DE{number % 89 + 10} 1203 0000 {1000 + number} 2020 51",
        "note": PROSE[number % 40 :],
    }
