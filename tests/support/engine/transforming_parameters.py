"""Parameters whose decoded form is not their encoded one: decoding them twice, or not at all, shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    Base64UrlBytes,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    HttpUrl,
    PlainSerializer,
    WithJsonSchema,
)

DECODED = "decoded"
SECRET_WORDS = ("shop.example", "EUR", "AP_-", "fragile", "PT1H30M", "10.50")
"""Parts of the arguments and of their encoded forms; no workflow history may hold one."""


class Speed(Enum):
    SLOW = 1
    FAST = 2


@dataclass(frozen=True)
class Money:
    """Not text, and not readable as text: parsing it a second time fails."""

    currency: str
    amount: Decimal


def parse_money(text: Any) -> Money:
    currency, space, amount = text.partition(" ") if isinstance(text, str) else ("", "", "")
    if not space:
        raise ValueError(f"an amount of money is a text such as EUR 1.20, not {type(text).__name__}")
    return Money(currency, Decimal(amount))


def money_text(money: Money) -> str:
    return f"{money.currency} {money.amount}"


MoneyText = Annotated[
    Money, BeforeValidator(parse_money), PlainSerializer(money_text), WithJsonSchema({"type": "string", "minLength": 5})
]
Trail = Annotated[list[str], BeforeValidator(lambda sent: [*sent, DECODED])]
"""Grows by one each time it is decoded."""


class Seal(BaseModel):
    """Bytes that are base64 by configuration. Apart, because the configuration would reach ``label`` too."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    stamp: bytes


class Parcel(BaseModel):
    """One of each."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    url: HttpUrl
    at: AwareDatetime
    price: Decimal
    speed: Speed
    fee: MoneyText
    label: Base64UrlBytes
    seal: Seal
    every: timedelta
    tags: set[str]
    trail: Trail


def raw(price: str = "10.50", trail: str = "model") -> str:
    """The arguments as a model sends them, in a form of its own that no encoder gives."""
    return (
        '{ "url":"https://shop.example",  "at": "2026-01-02T03:04:05.000+02:00", "speed": 2, "fee": "EUR 0.70",\n'
        '  "label": "AP_-", "seal": {"stamp": "AP/+"}, "every": "PT90M", "tags": ["fragile"],\n'
        f'  "price": "{price}",   "trail": ["{trail}"] }}'
    )


def decoded(price: str = "10.50", trail: str = "model") -> dict[str, Any]:
    """What everyone who receives the parameters must see."""
    return {
        "url": HttpUrl("https://shop.example/"),
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))),
        "price": Decimal(price),
        "speed": Speed.FAST,
        "fee": Money("EUR", Decimal("0.70")),
        "label": b"\x00\xff\xfe",
        "seal": Seal(stamp=b"\x00\xff\xfe"),
        "every": timedelta(minutes=90),
        "tags": {"fragile"},
        "trail": [trail, DECODED],
    }


def encoded(price: str = "10.50", trail: str = "model") -> dict[str, Any]:
    """A parcel as a result shows it: encoded from what was decoded, and not decoded again."""
    return {
        "url": "https://shop.example/",
        "at": "2026-01-02T03:04:05+02:00",
        "price": price,
        "speed": 2,
        "fee": "EUR 0.70",
        "label": "AP_-",
        "seal": {"stamp": "AP_-"},
        "every": "PT1H30M",
        "tags": ["fragile"],
        "trail": [trail, DECODED],
    }


def seen(params: Parcel) -> dict[str, Any]:
    """The parameters as plain values, to compare with :func:`decoded`; types are compared too."""
    values = {name: getattr(params, name) for name in Parcel.model_fields}
    for name, value in decoded().items():
        assert type(values[name]) is type(value), (name, values[name])
    return values


def compact(value: Any) -> str:
    """JSON as results are written for a model."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
