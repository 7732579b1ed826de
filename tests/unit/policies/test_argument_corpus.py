"""Arguments that try to get past rules: each is judged by the policy, and what it allows is done by the tool's own reading."""

from __future__ import annotations

from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from turngate import tool
from turngate.domain.crashes import crashes_go_to
from turngate.domain.policy.policy import evaluate, parse_policy
from turngate.domain.tools.failures import InvalidToolInput
from turngate.domain.tools.tool import Tool
from turngate.policies.facts import call_facts

PAYING = parse_policy(
    """
[[rule]]
name = "no-large-payments"
verdict = "deny"
tools = ["*"]
args = [{ at = "/amount", op = "gt", value = 500 }]

[[rule]]
name = "production-asks"
verdict = "ask"
tools = ["*"]
args = [{ at = "/account", op = "eq", value = "production" }]

[[rule]]
name = "forced"
verdict = "deny"
tools = ["*"]
args = [{ at = "/force", op = "eq", value = true }]

[[rule]]
name = "to-the-boss"
verdict = "deny"
tools = ["*"]
args = [{ at = "/to/name", op = "eq", value = "boss" }]

[[rule]]
name = "the-rest"
verdict = "allow"
tools = ["*"]
""",
    source="a test",
)
WRITING = parse_policy(
    """
[[rule]]
name = "secrets"
verdict = "deny"
tools = ["*"]
paths = ["**/.env", "config/secret/**"]

[[rule]]
name = "commands"
verdict = "deny"
tools = ["*"]
command = ["rm"]

[[rule]]
name = "the-rest"
verdict = "allow"
tools = ["*"]
""",
    source="a test",
)


class Person(BaseModel):
    name: str = Field(default="x", validation_alias=AliasChoices("name", "who"))


class Payment(BaseModel):
    """By names and aliases."""

    model_config = ConfigDict(populate_by_name=True)

    amount: Decimal = Field(validation_alias=AliasChoices("amount", "amt", AliasPath("sums", 0)))
    account: str = Field(default="test", alias="acct")
    force: bool = Field(default=False, alias="-f")
    to: Person = Field(default_factory=Person, alias="payee")


class LaxPayment(BaseModel):
    """With values that are changed on the way."""

    model_config = ConfigDict(str_strip_whitespace=True, str_to_lower=True, coerce_numbers_to_str=True)

    amount: float = Field(default=1, validation_alias=AliasChoices("betrag", "amount"))
    account: Annotated[str, BeforeValidator(lambda sent: sent[0] if isinstance(sent, list) else sent)] = "test"
    force: bool = False
    to: Person = Field(default_factory=Person)


AMOUNTS = [
    "501", "501.0", "5.01e2", '"501"', '" 501 "', '"5_01"', '"+501"', '"0501"', '"501.0"', "1e3", '"1e3"', "true",
    "[501]", "500", "1", "500.0000000000000000001", "1e999", '"Infinity"', '"nan"', "-1", '"-501"', '"500"', "0",
    "null", '{"value": 501}', "9007199254740993", "499.99", "5e2", '"\\u0035\\u0030\\u0031"',
    '"\\uff15\\uff10\\uff11"', "NaN", "Infinity", "-0", "1e-999", '"5e2"', '""', '"0x1f5"',
]  # fmt: skip
AMOUNT_KEYS = ["amount", "\\u0061mount", "amt", "betrag", "Amount", "amount ", "sums", "/amount", "amount\\u200b"]
ACCOUNTS = [
    '"production"', '"Production"', '" production"', '"prod\\u200buction"', '"\\uff50roduction"', '["production"]',
    '"test"', "null", "1", '"produc\\u0074ion"', '"production\\n"', '{"name": "production"}', '"prod"',
    '"production/x"', '"pr\\u043eduction"', "true",
]  # fmt: skip
ACCOUNT_KEYS = ["account", "acct", "\\u0061cct", "Account", "konto"]
FORCES = [
    "true", "1", '"true"', '"yes"', '"on"', '"1"', '"t"', "1.0", "false", "0", '"no"', "null", "[true]", '"TRUE"', "2",
]  # fmt: skip
FORCE_KEYS = ["force", "-f", "Force", "forc\\u0065"]
PEOPLE = [
    '{"name": "boss"}', '{"who": "boss"}', '{"who": "Boss "}', '{"name": "x", "who": "boss"}', '{"who": "x"}', '"boss"',
    "null", "[]", "{}",
]  # fmt: skip
PEOPLE_KEYS = ["to", "payee", "t\\u006f"]


def texts() -> list[str]:
    """Return the arguments: one field in every spelling, and pairs of keys that may mean the same field."""
    rows = [f'{{"{key}": {value}}}' for key, value in product(AMOUNT_KEYS, AMOUNTS)]
    rows += [f'{{"amount": 1, "{key}": {value}}}' for key, value in product(AMOUNT_KEYS, AMOUNTS[:12])]
    rows += [f'{{"{key}": {value}, "amount": 1}}' for key, value in product(AMOUNT_KEYS, AMOUNTS[:6])]
    for keys, values in ((ACCOUNT_KEYS, ACCOUNTS), (FORCE_KEYS, FORCES), (PEOPLE_KEYS, PEOPLE)):
        rows += [f'{{"amount": 1, "{key}": {value}}}' for key, value in product(keys, values)]
        rows += [
            f'{{"amount": 1, "{one}": {harmless}, "{other}": {values[0]}}}'
            for one, other, harmless in product(keys, keys, values[-2:])
            if one != other
        ]
    return [
        *rows,
        "{}",
        "[]",
        "null",
        '"amount"',
        '{"sums": [501]}',
        '{"sums": [1, 501]}',
        '{"amount": 1, "sums": [501]}',
    ]


def declared(params: type[BaseModel]) -> Tool:
    async def run(params: Any) -> None:
        """Do it."""

    run.__annotations__["params"] = params
    return tool(ask=True, name="run")(run)


@pytest.mark.parametrize("model", [Payment, LaxPayment])
def test_no_payment_is_made_that_the_rules_forbid(model: type[Payment | LaxPayment]) -> None:
    """Of all arguments, none that the policy allows means what its rules deny or ask about, as the tool reads them."""
    pay = declared(model)
    allowed, wrong = 0, list[str]()
    for raw in texts():
        try:
            params = pay.decode(raw)
        except InvalidToolInput:
            continue  # such a call never gets so far
        verdict = evaluate(PAYING, pay, params, agent="a", facts=lambda raw=raw: call_facts(raw, None))
        if verdict.answer != "allow":
            continue
        allowed += 1
        forbidden = params.amount > 500 or params.account.strip().casefold() == "production" or params.force
        if forbidden or params.to.name == "boss":
            wrong.append(raw)
    assert wrong == []
    assert allowed >= 20


def test_there_are_enough_arguments() -> None:
    """The corpus has at least 300 argument texts."""
    assert len(set(texts())) >= 300


class Writing(BaseModel):
    path: str = Field(alias="file")


class Running(BaseModel):
    line: str = Field(alias="cmd")
    token: SecretStr = SecretStr("x")


class Executing(BaseModel):
    command: str = Field(alias="cmd")


@pytest.mark.parametrize(
    ("model", "raw", "expected"),
    [
        (Executing, '{"cmd": "rm x"}', "deny"),
        (Executing, '{"cmd": "ls"}', "allow"),
        (Writing, '{"file": "src/../.env"}', "deny"),
        (Writing, '{"\\u0066ile": ".env"}', "deny"),
        (Writing, '{"file": "src/x"}', "allow"),
    ],
)
def test_a_command_or_path_under_an_alias_is_judged(
    model: type[BaseModel], raw: str, expected: str, tmp_path: Path
) -> None:
    """What the call gives by an alias of ``command`` or ``path`` is judged by the rules about commands and paths."""
    run = declared(model)
    facts = call_facts(raw, str(tmp_path))
    assert evaluate(WRITING, run, run.decode(raw), agent="a", facts=lambda: facts).answer == expected


class Transfers(BaseModel):
    lines: list[Payment] = []
    by_day: dict[str, Payment] = {}


@pytest.mark.parametrize(
    ("at", "raw"), [("/lines/1", '{{"lines": [{}, {}]}}'), ("/by_day/mo", '{{"by_day": {{"su": {}, "mo": {}}}}}')]
)
def test_what_a_list_or_a_mapping_holds_is_judged_as_the_tool_reads_it(at: str, raw: str) -> None:
    """A field of an object in a list or a mapping has its own name and its decoded value there, too."""
    transfer = declared(Transfers)
    rule = f'args = [{{ at = "{at}/account", op = "eq", value = "production" }}]'
    rules = parse_policy(f'[[rule]]\nname = "production"\nverdict = "deny"\ntools = ["*"]\n{rule}', source="a test")

    def answer(second: str) -> str:
        text = raw.format('{"amount": 1}', f'{{"amount": 1, "acct": "{second}"}}')
        return evaluate(rules, transfer, transfer.decode(text), agent="a", facts=lambda: call_facts(text, None)).answer

    assert [answer("production"), answer("test")] == ["deny", "ask"]


def test_values_that_rules_cannot_compare_stay_as_written() -> None:
    """A field whose value is no JSON, such as a secret, is judged as it was written, and harms no other rule."""
    run = declared(Running)
    raw = '{"cmd": "ls", "token": "production"}'
    rules = parse_policy(
        '[[rule]]\nname = "t"\nverdict = "allow"\ntools = ["*"]\nargs = [{ at = "/token", op = "eq", value = "production" }]',
        source="a test",
    )
    assert evaluate(rules, run, run.decode(raw), agent="a", facts=lambda: call_facts(raw, None)).answer == "allow"


class Sending(BaseModel):
    amount: int

    def __getattribute__(self, name: str) -> Any:
        return 1 // 0 if name == "amount" else super().__getattribute__(name)


def test_parameters_that_cannot_be_read_ask() -> None:
    """What a tool's own type does wrong is reported with its error, and no rule allows the call."""
    crashes: list[tuple[str, type[BaseException]]] = []
    send = declared(Sending)
    raw = '{"amount": 1}'
    with crashes_go_to(lambda says, error, **_names: crashes.append((says, type(error)))):
        verdict = evaluate(PAYING, send, send.decode(raw), agent="a", facts=lambda: call_facts(raw, None))
    assert verdict.answer == "ask"
    assert crashes == [("parameters could not be read", ZeroDivisionError)]
