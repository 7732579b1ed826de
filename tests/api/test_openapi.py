"""The API's document: the file in docs is what the app serves, and says what a client's author needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.api.api_server import Api

from turngate.approvals_api.app import documented_app
from turngate.approvals_api.http.openapi import TAGS, exported

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"
METHODS = {"get", "put", "post", "delete", "patch"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return documented_app().openapi()


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]


@pytest.mark.exhaustive
async def test_the_file_is_what_the_app_serves(api: Api) -> None:
    """docs/openapi.json and GET /api/v1/openapi.json of the running app are the same document, in the same order."""
    served = exported((await api.stranger.get("/api/v1/openapi.json")).json())
    assert FILE.read_text() == served, "docs/openapi.json is out of date: run `make openapi` and look at what changed"


def test_it_is_openapi_3_1(document: dict[str, Any]) -> None:
    """Version 3.1, and every reference resolves."""
    assert document["openapi"].startswith("3.1")

    def follow(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(reference := value.get("$ref"), str):
                target: Any = document
                for name in reference.removeprefix("#/").split("/"):
                    assert name in target, f"{reference} leads nowhere"
                    target = target[name]
            for each in value.values():
                follow(each)
        elif isinstance(value, list):
            for each in value:
                follow(each)

    follow(document)


def test_every_endpoint_is_described(document: dict[str, Any]) -> None:
    """Summary, one known tag, an operation id of its own in words, typed answers, described parameters, problems."""
    seen = [operation["operationId"] for _name, operation in operations(document)]
    assert len(seen) == len(set(seen)), "two endpoints' functions have one name"
    for name, operation in operations(document):
        assert operation["summary"], name
        assert len(operation["tags"]) == 1, name
        assert operation["tags"][0] in {tag for tag, _text in TAGS}, f"{name}: describe its tag in openapi.TAGS"
        assert "_api_" not in operation["operationId"], name
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), f"{name}: say what {parameter['name']} is (v1/parameters.py)"
        for status, answer in operation["responses"].items():
            content = answer.get("content", {})
            if status.startswith("2") and status != "204":
                assert all(media.get("schema") for media in content.values()), f"{name}: {status} has no type"
                assert content, f"{name}: {status} has no type"
            elif "$ref" not in answer:
                assert status == "204" or set(content) == {"application/problem+json"}, f"{name}: {status}"


def test_every_endpoint_of_the_api_says_who_may_and_what_may_go_wrong(document: dict[str, Any]) -> None:
    """Both credentials and 401, 403, 503 under /api/v1; 404 with an id in the path; 400, 411, 413, 422 with a body."""
    assert set(document["components"]["securitySchemes"]) == {"bearerToken", "sessionCookie"}
    for name, operation in operations(document):
        statuses = set(operation["responses"])
        if " /api/v1/" in name:
            assert operation["security"] == [{"bearerToken": []}, {"sessionCookie": []}], name
            assert {"401", "403", "503"} <= statuses, name
        assert "{" not in name or "404" in statuses, name
        assert "requestBody" not in operation or {"400", "411", "413", "422"} <= statuses, name
    decide = document["paths"]["/api/v1/requests/{request_id}/decisions"]["post"]
    assert {"200", "409", "410", "422"} <= set(decide["responses"])
    assert "202" not in decide["responses"], "a decision is final at once"
    assert decide["description"].endswith("Needs the scope `requests:decide`.")
    examples = decide["requestBody"]["content"]["application/json"]["examples"]
    assert set(examples) == {"approve", "edit", "reject", "respond", "outcome"}


def test_the_order_does_not_depend_on_the_routers(document: dict[str, Any]) -> None:
    """Paths, schemas and answers are sorted by name: another endpoint adds a few lines, and nothing else moves."""
    turned = {**document, "paths": dict(reversed(document["paths"].items()))}
    assert exported(turned) == exported(document)
    assert list(json.loads(exported(document))["paths"]) == sorted(document["paths"])
