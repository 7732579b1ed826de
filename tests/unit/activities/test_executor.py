"""Executor cases that earlier systems agreed on: raw arguments in, exactly one result out.

Stricter than all of them: a crash never fails the run, and never shows its message to the model; a
declared failure fails the run only if its tool says so, and the activity, not the executor, does that.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import anyio
import pytest
import structlog
import svcs
from pydantic import AfterValidator, BaseModel, ConfigDict, HttpUrl, JsonValue, PlainSerializer, SecretStr

from turngate import (
    Invocation,
    NothingHappened,
    OutcomeUnknown,
    Proceed,
    Tool,
    ToolContext,
    ToolFailure,
    declare_tool,
    interaction_tool,
    tool,
)
from turngate.activities.engine.author_code import AuthorCodeError, await_author
from turngate.activities.execution.executor import Unknown, execute
from turngate.domain.conversation.clipping import MAX_WHOLE_CHARS, PART_CHARS
from turngate.domain.tools.results import MAX_DEPTH, Failure, Ok, wire_text
from turngate.toolkits.json_schema import json_schema_tool


class Point(BaseModel):
    x: int


class Inner(BaseModel):
    b: int


class Nested(BaseModel):
    a: Inner
    c: int


class Missing(ToolFailure):
    message: str


class NotFound(ToolFailure):
    path: str
    reason: str = ""


class InArchive(NotFound):
    """A subclass of a declared failure that is not declared itself."""


@dataclass
class Call:
    """One call and what was observed of it."""

    emitted: list[Any] = field(default_factory=list)
    services: svcs.Registry = field(default_factory=svcs.Registry)

    async def __call__(self, of: Tool, raw_input: str = "", call_id: str = "c1") -> Ok | Failure | Unknown:
        ctx = ToolContext(
            run_id="run_1",
            tool_call_id=call_id,
            idempotency_key=f"key-{call_id}",
            workspace=None,
            deadline=datetime.now(UTC) + timedelta(hours=1),
            emit=self.emitted.append,
        )
        return await execute(of, raw_input, ctx, self.services)


@pytest.fixture
def run() -> Call:
    return Call()


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    """Yield the log as a worker writes it."""
    lines: list[Any] = []

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        lines.append(event)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[structlog.processors.format_exc_info, keep])
    yield lines
    structlog.configure(**before)


def tool_for(function: Callable[..., Awaitable[Any]], **options: Any) -> Tool:
    return tool(**{"effect": "read", "ask": False, **options})(function)


def value(returned: Any) -> Ok:
    return Ok(value={"value": returned})


# Arguments

NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer"


@pytest.mark.parametrize(
    ("raw_input", "reason", "problem"),
    [
        ("not json", "arguments are not valid JSON", "malformed_json"),
        ('{"a": {"b": 1}, "c": NaN}', "arguments are not valid JSON: NaN is no JSON number", "malformed_json"),
        ('[{"a": {"b": 1}, "c": 2}]', "arguments must be a JSON object", "malformed_json"),
        ('{"a": {"b": "m1"}, "c": "m2"}', f"a.b: {NO_INTEGER}; c: {NO_INTEGER}", "wrong_shape"),
    ],
)
async def test_i9_arguments_that_do_not_fit(run: Call, raw_input: str, reason: str, problem: str) -> None:
    """I9: the result names each wrong argument by its path; the handler is never called, in any failure mode."""
    called: list[Any] = []

    @tool(effect="read", failures=[Missing], failure_mode="raise")
    async def take(params: Nested) -> str:
        """Take."""
        called.append(params)
        return ""

    assert await run(take, raw_input) == Failure(
        kind="input_validation_error", reason=reason, fields={"problem": problem}
    )
    assert called == []


@pytest.mark.parametrize("escaped", ['"\\ud800"', '"\ud800"', '"\\udc00\\ud800"'])
async def test_i9_half_a_character_is_no_json(run: Call, escaped: str) -> None:
    """I9: half a surrogate pair, escaped or not, is malformed: no store and no provider accepts it."""

    class Text(BaseModel):
        text: str

    async def take(params: Text) -> str:
        """Take."""
        return params.text

    take.__annotations__["params"] = Text
    result = await run(tool_for(take), f'{{"text": {escaped}}}')
    assert isinstance(result, Failure)
    assert (result.kind, result.fields["problem"]) == ("input_validation_error", "malformed_json")


async def test_i7_arguments_are_decoded_once(run: Call) -> None:
    """I7: a type that transforms gets the model's text once: no number is doubled twice, no URL parsed twice."""

    class Transforming(BaseModel):
        number: Annotated[int, AfterValidator(lambda sent: sent * 2)]
        url: HttpUrl

    got: list[Any] = []

    async def take(params: Transforming) -> Transforming:
        """Take."""
        got.append(params.number)
        return params

    take.__annotations__.update(params=Transforming, **{"return": Transforming})
    result = await run(tool_for(take), '{"number": 21, "url": "https://example.com"}')
    assert got == [42]
    assert result == Ok(value={"number": 42, "url": "https://example.com/"})


async def test_raw_schema_arguments_reach_the_handler_as_sent(run: Call) -> None:
    """Nothing is converted or filled in, but the schema's refusals count."""
    received: list[JsonValue] = []

    async def take(params: dict[str, JsonValue]) -> JsonValue:
        received.append(params)
        return None

    schema: dict[str, JsonValue] = {"type": "object", "properties": {"at": {"type": "string"}, "n": {"default": 3}}}
    taking = json_schema_tool(name="take", description="Take.", parameters=schema, handler=take)
    assert await run(taking, '{"at": "2026-01-02", "more": [1]}') == value(None)
    assert received == [{"at": "2026-01-02", "more": [1]}]
    refused = await run(taking, '{"at": 2}')
    assert isinstance(refused, Failure)
    assert (refused.kind, len(received)) == ("input_validation_error", 1)


# Failures


@pytest.mark.parametrize("mode", ["return", "raise"])
async def test_a_declared_failure_has_its_own_message(run: Call, mode: Any) -> None:
    """Kind, reason and fields are the author's: the model reads ``reason``, else ``message``, else all fields."""

    async def gone() -> str:
        """Miss."""
        raise Missing(message="no such file")

    async def lost() -> str:
        """Miss."""
        raise NotFound(path="a.txt")

    first = await run(tool_for(gone, failures=[Missing], failure_mode=mode))
    assert first == Failure(kind="missing", reason="no such file", fields={"message": "no such file"})
    assert json.loads(wire_text(first)) == {"error": {"kind": "missing", "message": "no such file"}}
    second = await run(tool_for(lost, failures=[NotFound, Missing], failure_mode=mode))
    fields = {"path": "a.txt", "reason": ""}
    assert second == Failure(kind="not_found", reason=json.dumps(fields), fields=fields)


async def test_a_failure_of_a_subclass_has_the_declared_kind(run: Call) -> None:
    """The model knows no other kind; if both are declared each has its own, and the mode applies to both."""

    async def lost() -> str:
        """Miss."""
        raise InArchive(path="a.txt", reason="archived")

    parent = tool_for(lost, failures=[Missing, NotFound], failure_mode="raise")
    result = await run(parent)
    assert result == Failure(kind="not_found", reason="archived", fields={"path": "a.txt", "reason": "archived"})
    assert parent.fails_run(result)
    both = await run(tool_for(lost, failures=[NotFound, InArchive]))
    assert isinstance(both, Failure)
    assert both.kind == "in_archive"


async def test_an_undeclared_exception_is_a_crash(run: Call, logged: list[Any]) -> None:
    """A ToolFailure too. The model reads the tool's name but no message; the worker's log has the traceback."""

    async def lost() -> str:
        """Miss."""
        raise NotFound(path="/etc/secret")

    result = await run(tool_for(lost, failures=[Missing], failure_mode="raise"))
    assert isinstance(result, Failure)
    assert (result.kind, result.fields) == ("execution_error", {})
    assert "'lost'" in result.reason
    assert "secret" not in wire_text(result)
    assert [(line["tool"], "/etc/secret" in line["exception"]) for line in logged] == [("lost", True)]


async def test_a_tool_without_a_handler_is_not_local(run: Call) -> None:
    """Declared elsewhere, or of a kind without handlers: a result, before its arguments are read."""
    split = declare_tool(name="put", description="Put.", params=Point)
    question = interaction_tool(name="choose", description="Ask.", params=Point, answer=Point)
    for each in (split, question):
        result = await run(each, "not json")
        assert isinstance(result, Failure)
        assert result.kind == "non_local_tool"
        assert repr(each.name) in result.reason


async def test_a_timeout_is_a_result_whatever_the_handler_does_when_it_is_stopped(run: Call) -> None:
    """The message has the time; a handler that still returns keeps its result, and a declared failure its message."""

    class Params(BaseModel):
        then: str

    async def hang(params: Params) -> str:
        """Hang."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            match params.then:
                case "answer":
                    return "late, and whole"
                case "decline":
                    raise Missing(message="given up") from None
                case "break":
                    raise RuntimeError("broken") from None
                case _:
                    raise
        return ""

    hang.__annotations__["params"] = Params
    hanging = tool_for(hang, timeout=timedelta(seconds=1), failures=[Missing])
    cases = ["stop", "break", "answer", "decline"]
    stopped, broke, answered, declined = await asyncio.gather(*(run(hanging, json.dumps({"then": t})) for t in cases))
    assert stopped == broke == Failure(kind="timeout", reason="'hang' did not finish within 1 s and was stopped.")
    assert answered == value("late, and whole")
    assert isinstance(declined, Failure)
    assert declined.kind == "missing"


# Cancellation


async def by_itself() -> str:
    """Raise it."""
    raise asyncio.CancelledError


async def its_own_task() -> str:
    """Cancel the task that runs it, and wait."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)
    return ""


async def an_open_scope() -> str:
    """Leave a cancel scope open whose task breaks: it cancels this task for as long as it lives."""

    async def bad() -> None:
        raise ValueError

    group = anyio.create_task_group()
    await group.__aenter__()
    group.start_soon(bad)
    await asyncio.sleep(60)
    return ""


SELF_CANCELLED = [by_itself, its_own_task, an_open_scope]


@pytest.mark.parametrize("handler", SELF_CANCELLED)
async def test_a_tool_that_cancels_itself_has_a_result(run: Call, handler: Callable[..., Awaitable[Any]]) -> None:
    """It was not stopped from outside: it is ``cancelled`` by itself, and the surrounding task continues undisturbed."""
    result = await run(tool_for(handler))
    assert isinstance(result, Failure)
    assert (result.kind, "cancelled itself" in result.reason) == ("cancelled", True)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    for _ in range(3):
        await asyncio.sleep(0)  # a scope that still cancelled this task would do it here


@pytest.mark.parametrize("handler", SELF_CANCELLED)
async def test_author_code_that_cancels_itself_is_an_error(handler: Callable[..., Awaitable[Any]]) -> None:
    """The same applies to hooks, probes and preconditions: cancelling their own task is an ordinary error."""
    with pytest.raises(AuthorCodeError):
        await await_author(handler(), seconds=5)
    await asyncio.sleep(0)


async def test_a_cancellation_from_outside_reaches_the_handler_and_passes_through(run: Call) -> None:
    """It is never turned into a result here: only the caller knows who cancelled, and what that means."""
    at_work, stopped = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        """Work."""
        at_work.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return ""

    task = asyncio.create_task(run(tool_for(work)))
    await at_work.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()


async def test_a_handler_sees_the_context_it_is_called_in(run: Call) -> None:
    """Context variables (a trace, say) that are set around a call are visible in it."""
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")
    trace.set("t-1")

    async def seen() -> str:
        """Tell."""
        return trace.get()

    assert await run(tool_for(seen)) == value("t-1")


# Returned values


class Ratio(BaseModel):
    of: float
    note: str | None


def deep(levels: int) -> Any:
    nested: Any = "end"
    for _ in range(levels):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("declared", "returned", "encoded"),
    [
        (str, "done", "done"),
        (type(None), None, None),
        (bool | None, None, None),
        (float, float("nan"), "NaN"),
        (float | None, float("-inf"), "-Infinity"),
        (Decimal, Decimal("1.10"), "1.10"),
        (set[int], {7}, [7]),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (list[Point], [{"x": 1}], [{"x": 1}]),
        (int, "5", 5),
        (int, -(2**70), -(2**70)),
        (str, "a\x00\ud800", "a\x00\ufffd"),
        (Any, deep(MAX_DEPTH), deep(MAX_DEPTH)),
    ],
)
async def test_a_bare_value_is_wrapped_as_json(run: Call, declared: Any, returned: Any, encoded: Any) -> None:
    """Results are always JSON objects; a value of almost the declared type is decoded as it, once, if possible."""

    async def give() -> Any:
        """Give."""
        return returned

    give.__annotations__["return"] = declared
    assert await run(tool_for(give)) == value(encoded)


@pytest.mark.parametrize(
    ("declared", "returned", "encoded"),
    [
        (
            dict[str, Any],
            {"a": [1.5, float("inf"), None], "b": {"c": (float("nan"),)}},
            {"a": [1.5, "Infinity", None], "b": {"c": ["NaN"]}},
        ),
        (Ratio, Ratio(of=float("inf"), note=None), {"of": "Infinity", "note": None}),
    ],
)
async def test_a_number_that_json_cannot_say_is_a_text(run: Call, declared: Any, returned: Any, encoded: Any) -> None:
    """The model reads Infinity, and not null, as if there was no value; what is null stays null."""

    async def give() -> Any:
        """Give."""
        return returned

    give.__annotations__["return"] = declared
    assert await run(tool_for(give)) == Ok(value=encoded)


Refusing = Annotated[str, PlainSerializer(lambda _: {}["secret"])]


UNFIT: dict[str, tuple[Any, Any]] = {
    "no return": (int, None),
    "no return of a model": (Point, None),
    "another shape": (Point, {"y": 1}),
    "no object": (Point, "x"),
    "no value": (int, object()),
    "too long a number": (int, 10**5_000),
    "bytes that are no text": (bytes, b"\xff"),
    "a serializer that breaks": (Refusing, "x"),
    "too deep": (Any, deep(MAX_DEPTH + 1)),
    "much too deep": (Any, deep(5_000)),
}


@pytest.mark.parametrize("case", UNFIT)
async def test_a_success_that_does_not_fit_is_the_tools_own_bug(run: Call, logged: list[Any], case: str) -> None:
    """A forgotten ``return`` included. The model reads that the effects remain, because repeating would not fix it."""
    declared, returned = UNFIT[case]

    async def give() -> Any:
        """Give."""
        return returned

    give.__annotations__["return"] = declared
    result = await run(tool_for(give))
    assert isinstance(result, Failure)
    assert result.kind == "execution_error"
    assert "effects remain: do not repeat" in result.reason
    assert "secret" not in wire_text(result)
    assert [line["tool"] for line in logged] == ["give"]


# Order and neighbours


async def test_progress_comes_before_the_result_and_is_no_part_of_it(run: Call) -> None:
    """In the order of emission, also before a failure; the result is one value, whatever was emitted."""

    async def work(ctx: ToolContext) -> str:
        """Work."""
        ctx.emit("a")
        ctx.emit({"percent": 50})
        return "done"

    async def fail(ctx: ToolContext) -> str:
        """Fail."""
        ctx.emit("b")
        raise Missing(message="no")

    assert await run(tool_for(work)) == value("done")
    assert run.emitted == ["a", {"percent": 50}]
    failed = await run(tool_for(fail, failures=[Missing]))
    assert isinstance(failed, Failure)
    assert run.emitted == ["a", {"percent": 50}, "b"]


async def test_equal_calls_have_their_own_ids(run: Call) -> None:
    """Two parallel calls of one tool with the same arguments: each handler has its own call id and key."""

    async def who(params: Point, ctx: ToolContext) -> list[str]:
        """Tell."""
        await asyncio.sleep(0)
        return [ctx.tool_call_id, ctx.idempotency_key]

    both = await asyncio.gather(*(run(tool_for(who), '{"x": 1}', call_id) for call_id in ("c1", "c2")))
    assert list(both) == [value(["c1", "key-c1"]), value(["c2", "key-c2"])]


async def test_a_service_is_closed_when_its_call_is_over(run: Call) -> None:
    """However the call ends, by a crash or a timeout; a cleanup that raises does not lose the result."""
    events: list[str] = []

    class Session:
        pass

    async def session() -> AsyncIterator[Session]:
        yield Session()
        events.append("closed")
        raise RuntimeError("broken cleanup")

    run.services.register_factory(Session, session)

    async def work(session: Session) -> str:
        """Work."""
        return "done"

    async def crash(session: Session) -> str:
        """Crash."""
        raise RuntimeError

    work.__annotations__["session"] = crash.__annotations__["session"] = Session
    assert await run(tool_for(work)) == value("done")
    crashed = await run(tool_for(crash))
    assert isinstance(crashed, Failure)
    assert crashed.kind == "execution_error"
    assert events == ["closed", "closed"]


# Whether a ``once`` call happened (I3)


class Deep(ToolFailure):
    """A declared failure whose details can't be shown."""

    reason: str
    details: Any


async def returns() -> str:
    """End."""
    return "booked"


async def declares() -> str:
    """End."""
    raise Missing(message="no such account")


async def deep_failure() -> str:
    """End."""
    raise Deep(reason="no", details=deep(MAX_DEPTH + 1))


async def nothing_happened() -> str:
    """End."""
    raise NothingHappened("the connection was refused")


async def times_out() -> str:
    """End."""
    await asyncio.sleep(60)
    return ""


async def breaks_when_stopped() -> str:
    """End."""
    try:
        await asyncio.sleep(60)
    finally:
        raise ConnectionResetError("hunter2")
    return ""


async def says_so() -> str:
    """End."""
    raise OutcomeUnknown("the bank never answered")


async def connection_lost() -> str:
    """End."""
    raise ConnectionResetError("hunter2")


async def undeclared_failure() -> str:
    """End."""
    raise NotFound(path="hunter2")


async def exits() -> str:
    """End."""
    raise SystemExit


async def unfit() -> int:
    """End."""
    return "hunter2"  # type: ignore[return-value]


async def endless() -> int:
    """End."""
    return 10**5_000


class Unreadable(Exception):  # noqa: N818 - it is only unreadable
    def __str__(self) -> str:
        raise RuntimeError


async def says_so_with_an_exception() -> str:
    """End."""
    raise OutcomeUnknown(ConnectionResetError("the line is dead"))  # type: ignore[arg-type]


async def says_so_with_half_a_character() -> str:
    """End."""
    raise OutcomeUnknown("the bank said \ud800")


async def says_so_without_words() -> str:
    """End."""
    raise OutcomeUnknown("")


async def nothing_unreadable() -> str:
    """End."""
    raise NothingHappened(Unreadable())  # type: ignore[arg-type]


class Silent(Missing):
    def __init__(self) -> None:
        self.fields = ["silent"]  # type: ignore[assignment]


async def declares_nothing() -> str:
    """End."""
    raise Silent


async def unreadable() -> str:
    """End."""
    raise Unreadable


async def closes_itself() -> str:
    """End."""
    raise GeneratorExit


async def misses_a_workspace(ctx: ToolContext) -> str:
    """Book, and then look for a workspace."""
    return str(ctx.require_workspace())


ENDINGS = {
    each.__name__: each
    for each in (
        *SELF_CANCELLED,
        returns,
        declares,
        deep_failure,
        nothing_happened,
        times_out,
        breaks_when_stopped,
        says_so,
        connection_lost,
        undeclared_failure,
        exits,
        unfit,
        endless,
        says_so_with_an_exception,
        says_so_with_half_a_character,
        says_so_without_words,
        nothing_unreadable,
        declares_nothing,
        unreadable,
        closes_itself,
        misses_a_workspace,
    )
}
KNOWN = {
    "returns": "ok",
    "declares": "missing",
    "declares_nothing": "missing",
    "deep_failure": "deep",
    "nothing_happened": "nothing_happened",
    "nothing_unreadable": "nothing_happened",
}
WHY = {
    "times_out": "did not finish within 1 s and was stopped",
    "breaks_when_stopped": "did not finish within 1 s",
    "says_so": "the bank never answered.",
    "says_so_with_an_exception": "the line is dead.",
    "says_so_with_half_a_character": "the bank said \ufffd.",
    "says_so_without_words": "says that it doesn't know.",
    "unreadable": "Unreadable",
    "closes_itself": "AuthorCodeError",
    "misses_a_workspace": "needs a workspace",
    "connection_lost": "ConnectionResetError",
    "undeclared_failure": "NotFound",
    "exits": "SystemExit",
    "unfit": "does not fit its declared type",
    "endless": "does not fit its declared type",
    "by_itself": "cancelled itself",
    "its_own_task": "cancelled itself",
    "an_open_scope": "cancelled itself",
}


@pytest.mark.parametrize("case", [*KNOWN, *WHY])
async def test_i3_every_ending_of_a_once_handler(run: Call, case: str) -> None:
    """I3: its result, a declared failure and NothingHappened are known; of any other end no one knows whether it happened."""
    options: dict[str, Any] = {"failures": [Missing, Deep], "timeout": timedelta(seconds=1)}
    of_each = (tool_for(ENDINGS[case], effect=effect, **options) for effect in ("once", "idempotent"))
    ended, repeatable = await asyncio.gather(*map(run, of_each))
    if case in KNOWN:
        assert (ended.kind if isinstance(ended, Failure) else "ok") == KNOWN[case]
    else:
        assert isinstance(ended, Unknown)
        assert WHY[case] in ended.why
        assert ended.why.endswith(".")
        assert "hunter2" not in ended.why
    assert not isinstance(repeatable, Unknown)


@pytest.mark.parametrize("where", ["service", "slow service", "middleware"])
async def test_i3_a_handler_that_never_started_did_nothing(run: Call, where: str) -> None:
    """I3: known, whatever the effect, and not the arguments' fault: the handler's service or its middleware ended it before."""
    booked: list[str] = []

    class Bank:
        pass

    async def bank() -> Bank:
        if where == "slow service":
            await asyncio.sleep(60)
        raise ConnectionRefusedError("hunter2")

    async def pay(bank: Bank) -> str:
        """Pay."""
        booked.append("effect")
        return ""

    async def refuses(_invocation: Invocation, proceed: Proceed) -> Any:
        if where == "middleware":
            raise RuntimeError("hunter2")
        return await proceed()

    run.services.register_factory(Bank, bank)
    pay.__annotations__["bank"] = Bank
    paying = replace(tool_for(pay, timeout=timedelta(seconds=1)), middleware=(refuses,))
    for ended in await asyncio.gather(*(run(replace(paying, effect=effect)) for effect in ("once", "read"))):
        assert isinstance(ended, Failure)
        assert ended.kind == ("timeout" if where == "slow service" else "execution_error")
        assert "did not run, so nothing happened" in ended.reason
        assert "argument" not in ended.reason
        assert "hunter2" not in ended.reason
    assert booked == []


class Order(BaseModel):
    """Parameters with something to change at every depth."""

    model_config = ConfigDict(extra="allow")

    cents: int = 5
    lines: list[dict[str, int]] = [{"count": 1}]
    tags: set[str] = {"a"}
    pin: SecretStr = SecretStr("0000")


def sets(name: str, value: Any) -> Any:
    return lambda invocation: setattr(invocation.params, name, value)


@pytest.mark.parametrize("effect", ["once", "read"])
@pytest.mark.parametrize(
    ("change", "place"),
    [
        pytest.param(sets("cents", 999_999), "'cents'", id="a value"),
        pytest.param(sets("cents", True), "'cents'", id="its type"),
        pytest.param(
            lambda invocation: invocation.params.lines[0].update(count=7), "'lines.0.count'", id="deep inside"
        ),
        pytest.param(lambda invocation: invocation.params.lines.append({}), "'lines.1'", id="one more"),
        pytest.param(lambda invocation: invocation.params.tags.add("hunter2"), "'tags'", id="a set"),
        pytest.param(sets("pin", SecretStr("hunter2")), "'pin'", id="a secret"),
        pytest.param(sets("more", 1), "'more'", id="a field that was not there"),
        pytest.param(
            lambda invocation: object.__setattr__(invocation, "params", None), "its arguments", id="all of them"
        ),
    ],
)
async def test_i6_middleware_can_not_change_what_runs(run: Call, effect: Any, change: Any, place: str) -> None:
    """I6: a call does not run if middleware changed its arguments, whatever the effect and whatever middleware makes of that.

    The reason names the middleware and the argument, and no value.
    """
    booked: list[Order] = []

    async def pay(params: Order) -> str:
        """Pay."""
        booked.append(params)
        return "paid"

    def middleware(then: str) -> Any:
        async def meddles(invocation: Invocation, proceed: Proceed) -> Any:
            change(invocation)
            try:
                return await proceed()
            except Exception:
                if then == "answers":
                    return "paid"
                if then == "fails":
                    raise Missing(message="no such account") from None
                raise

        return meddles

    async def around(_invocation: Invocation, proceed: Proceed) -> Any:
        return await proceed()

    paying = tool_for(pay, effect=effect, failures=[Missing])
    for then in ("raises", "answers", "fails"):
        ended = await run(replace(paying, middleware=(around, middleware(then), around)))
        assert isinstance(ended, Failure)
        assert ended.kind == "execution_error"
        assert "did not run, so nothing happened" in ended.reason
        assert (
            f"{__name__}.test_i6_middleware_can_not_change_what_runs.<locals>.middleware.<locals>.meddles"
            in ended.reason
        )
        assert place in ended.reason
        assert "hunter2" not in ended.reason
    assert booked == []


async def test_i6_a_handler_gets_what_middleware_has_never_had(run: Call) -> None:
    """I6: middleware that changes arguments while the handler runs, or its context, changes nothing that the handler has.

    So does a handler that is started again: what the first start did to its arguments is not in the second's.
    """
    seen: list[tuple[list[dict[str, int]], str]] = []

    async def look(params: Order, ctx: ToolContext) -> str:
        """Look."""
        await asyncio.sleep(0)
        seen.append((list(params.lines), ctx.run_id))
        params.lines.clear()
        return ""

    async def meddles(invocation: Invocation, proceed: Proceed) -> Any:
        object.__setattr__(invocation.ctx, "run_id", "run_of_someone_else")
        await proceed()
        both = await asyncio.gather(proceed(), at_once(invocation))
        return both[0]

    async def at_once(invocation: Invocation) -> None:
        invocation.params.lines.clear()

    assert isinstance(await run(replace(tool_for(look, effect="read"), middleware=(meddles,))), Ok)
    assert [lines for lines, _run_id in seen] == [[{"count": 1}]] * 2
    assert len({run_id for _lines, run_id in seen} - {"run_of_someone_else"}) == 1


async def test_i3_middleware_that_raises_after_the_handler_leaves_it_unknown(run: Call) -> None:
    """I3: the handler has started; only what the middleware raises to say so makes its end known."""

    async def pay() -> str:
        """Pay."""
        return "paid"

    def middleware(raised: Exception) -> Any:
        async def breaks(_invocation: Invocation, proceed: Proceed) -> Any:
            await proceed()
            raise raised

        return breaks

    paying = tool_for(pay, effect="once", failures=[Missing])
    ends = [
        await run(replace(paying, middleware=(middleware(raised),)))
        for raised in (RuntimeError(), NothingHappened("taken back"), Missing(message="taken back"))
    ]
    assert isinstance(ends[0], Unknown)
    assert [each.kind for each in ends[1:] if isinstance(each, Failure)] == ["nothing_happened", "missing"]


@pytest.mark.parametrize(
    "returned", [list(range(2_000_000)), "é" * (MAX_WHOLE_CHARS + 1), ["\ud800", "x" * MAX_WHOLE_CHARS]]
)
async def test_of_a_result_too_large_to_keep_there_is_a_part(run: Call, returned: Any) -> None:
    """Head, tail, size and digest of its text, for a ``once`` call, too: it ran, and that is known."""

    @tool(effect="once")
    async def dump() -> Any:
        """Return it all."""
        return returned

    result = await run(dump)
    assert isinstance(result, Ok)
    assert (result.value["truncated"], len(wire_text(result)) < 2 * PART_CHARS) == (True, True)
    assert int(str(result.value["total_chars"])) > MAX_WHOLE_CHARS


async def test_of_a_failure_too_large_to_keep_there_is_its_reason_and_a_part(run: Call) -> None:
    """However long its fields are, or its reason."""

    @tool(effect="once", failures=[NotFound])
    async def find() -> int:
        """Fail at length."""
        raise NotFound(path="p" * MAX_WHOLE_CHARS, reason="gone" * 1000)

    result = await run(find)
    assert isinstance(result, Failure)
    assert (result.kind, result.reason[:4], result.fields["truncated"]) == ("not_found", "gone", True)
    assert len(wire_text(result)) < 2 * PART_CHARS
