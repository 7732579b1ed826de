"""Credentials planted in calls: shapes of arguments with the schema that declares the secret in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turngate.domain.tools.secrets import with_secrets

STRING = {"type": "string"}
PASSWORD = {"type": "string", "format": "password"}
HIDDEN = {"writeOnly": True}


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def at(pointer: str, schema: dict[str, Any]) -> dict[str, Any]:
    marked = with_secrets(schema, pointer)
    assert marked is not None
    return marked


LOGIN = object_of(user=STRING, password=PASSWORD)


@dataclass(frozen=True)
class Shape:
    """One way in which a call holds a secret. ``call``: the JSON text with the secret (a JSON string) in it."""

    name: str
    schema: dict[str, Any]
    call: Callable[[str], str]


def shape(name: str, schema: dict[str, Any], value: Callable[[str], Any]) -> Shape:
    return Shape(name, schema, lambda secret: json.dumps(value(secret), ensure_ascii=False))


SHAPES = (
    shape("format password", LOGIN, lambda s: {"user": "ada", "password": s}),
    shape("writeOnly", object_of(key=HIDDEN), lambda s: {"key": s}),
    shape("nested", object_of(a=object_of(b=object_of(c=LOGIN))), lambda s: {"a": {"b": {"c": {"password": s}}}}),
    shape("array of strings", object_of(keys={"type": "array", "items": PASSWORD}), lambda s: {"keys": ["x-y-z", s]}),
    shape("array of objects", object_of(all={"items": LOGIN}), lambda s: {"all": [{"user": "a"}, {"password": s}]}),
    shape("tuple", object_of(pair={"prefixItems": [STRING, PASSWORD]}), lambda s: {"pair": ["a", s]}),
    shape("old tuple", object_of(pair={"items": [STRING, PASSWORD]}), lambda s: {"pair": ["a", s]}),
    shape("items after a tuple", object_of(l={"prefixItems": [STRING], "items": HIDDEN}), lambda s: {"l": ["a", s]}),
    shape("anyOf", object_of(auth={"anyOf": [STRING, LOGIN]}), lambda s: {"auth": {"password": s}}),
    shape("oneOf with null", object_of(key={"oneOf": [PASSWORD, {"type": "null"}]}), lambda s: {"key": s}),
    shape("allOf", {"allOf": [object_of(user=STRING), LOGIN]}, lambda s: {"user": "a", "password": s}),
    shape(
        "discriminated union",
        object_of(
            auth={
                "discriminator": {"propertyName": "kind"},
                "oneOf": [
                    object_of(kind={"const": "key"}, value=PASSWORD),
                    object_of(kind={"const": "none"}, value=STRING),
                ],
            }
        ),
        lambda s: {"auth": {"kind": "key", "value": s}},
    ),
    shape("if and then", {**object_of(t=STRING), "if": {}, "then": object_of(t=HIDDEN)}, lambda s: {"t": s}),
    shape(
        "dependent schemas",
        {"type": "object", "dependentSchemas": {"user": object_of(pin=HIDDEN)}},
        lambda s: {"user": "a", "pin": s},
    ),
    shape("additionalProperties", {"type": "object", "additionalProperties": PASSWORD}, lambda s: {"anything": s}),
    shape("patternProperties", {"patternProperties": {"^x-": HIDDEN}}, lambda s: {"x-key": s}),
    shape("unevaluatedProperties", {"unevaluatedProperties": HIDDEN}, lambda s: {"anything": s}),
    shape(
        "reference",
        {"$defs": {"Login": LOGIN}, **object_of(login={"$ref": "#/$defs/Login"})},
        lambda s: {"login": {"password": s}},
    ),
    shape(
        "reference to an anchor",
        {"$defs": {"x": {"$anchor": "login", **LOGIN}}, **object_of(login={"$ref": "#login"})},
        lambda s: {"login": {"password": s}},
    ),
    shape(
        "recursive",
        {"$defs": {"Node": object_of(key=PASSWORD, next={"$ref": "#/$defs/Node"})}, "$ref": "#/$defs/Node"},
        lambda s: {"next": {"next": {"next": {"key": s}}}},
    ),
    shape(
        "a reference that leads nowhere",
        {**object_of(a={"$ref": "https://elsewhere.example/schema"}, b=PASSWORD)},
        lambda s: {"a": {"deep": [s]}},
    ),
    shape("unicode key", object_of(**{"пароль-密码": PASSWORD}), lambda s: {"пароль-密码": s}),
    shape("key with ~ and /", object_of(**{"a/b~c": PASSWORD}), lambda s: {"a/b~c": s}),
    shape("pointer", at("/token", object_of(token=STRING, user=STRING)), lambda s: {"user": "a", "token": s}),
    shape("pointer with escapes", at("/a~1b~0c", object_of(**{"a/b~c": STRING})), lambda s: {"a/b~c": s}),
    shape(
        "pointer into every item",
        at("/all/*/key", object_of(all={"type": "array", "items": object_of(key=STRING)})),
        lambda s: {"all": [{"key": "0000"}, {"key": s}]},
    ),
    shape(
        "pointer into a free object",
        at("/env/API_KEY", object_of(env={"type": "object"})),
        lambda s: {"env": {"API_KEY": s}},
    ),
    shape("a whole object", object_of(credentials=HIDDEN), lambda s: {"credentials": {"any": {"thing": [s, 1]}}}),
    Shape("doubled key", LOGIN, lambda secret: f'{{"password": {json.dumps(secret)}, "password": "other-one"}}'),
    Shape("escaped", LOGIN, lambda secret: '{"password": "' + "".join(f"\\u{ord(c):04x}" for c in secret) + '"}'),
    Shape("no JSON", LOGIN, lambda secret: f"password={secret}"),
)
