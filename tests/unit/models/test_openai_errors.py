from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from turngate.domain.errors import ModelError
from turngate.models.openai.errors import Endpoint, error_in_body, error_of_status, retry_after_seconds

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
ENDPOINT = Endpoint(url="http://provider/v1", model="gpt-x", secret="tk_secret_1")


def of_status(status: int, error: object = None, headers: dict[str, str] | None = None) -> ModelError:
    content = b"" if error is None else json.dumps({"error": error}).encode()
    return error_of_status(status, headers or {}, content, ENDPOINT, now=NOW)


@pytest.mark.parametrize(
    ("status", "error", "error_class", "retryable"),
    [
        (400, {"message": "bad tool"}, "invalid_request", False),
        (400, {"message": "too long", "code": "context_length_exceeded"}, "context_length", False),
        (400, {"message": "This model's maximum context length is 4096 tokens.", "code": 400}, "context_length", False),
        (400, {"code": "content_filter", "message": "filtered"}, "invalid_request", False),
        (401, {"message": "no"}, "authentication", False),
        (402, {"message": "Insufficient credits"}, "permission", False),
        (403, {"message": "no"}, "permission", False),
        (404, {"message": "no"}, "not_found", False),
        (408, None, "rate_limited", True),
        (409, None, "rate_limited", True),
        (413, None, "context_length", False),
        (422, {"message": "bad"}, "invalid_request", False),
        (425, None, "rate_limited", True),
        (429, {"message": "slow down", "code": "rate_limit_exceeded"}, "rate_limited", True),
        (429, {"message": "pay", "code": "insufficient_quota"}, "permission", False),
        (429, {"message": "pay", "type": "insufficient_quota", "code": None}, "permission", False),
        (429, {"message": "You have reached your weekly usage limit."}, "permission", False),
        (429, {"message": "Your credit balance is too low"}, "permission", False),
        (429, {"message": "The limit of requests per minute is reached"}, "rate_limited", True),
        (500, "text", "server_error", True),
        (502, None, "server_error", True),
        (529, {"message": "overloaded"}, "server_error", True),
        (307, None, "configuration", False),
    ],
)
def test_classes_of_a_status(status, error, error_class, retryable):
    """The status decides, and the code where the status alone would mislead."""
    classified = of_status(status, error)
    assert (classified.error_class, classified.retryable, classified.status) == (error_class, retryable, status)


@pytest.mark.parametrize(
    ("error", "error_class", "retryable"),
    [
        ({"code": 429, "message": "slow"}, "rate_limited", True),
        ({"code": "429", "message": "slow"}, "rate_limited", True),
        ({"code": 502, "message": "down"}, "server_error", True),
        ({"code": 401, "message": "no"}, "authentication", False),
        ({"code": "insufficient_quota", "message": "pay"}, "permission", False),
        ({"code": "context_length_exceeded", "message": "long"}, "context_length", False),
        ({"code": None, "type": "invalid_request_error", "message": "bad"}, "invalid_request", False),
        ({"code": "never_heard_of", "message": "?"}, "server_error", True),
        ({"code": True, "message": "?"}, "server_error", True),
        ({"code": ["x"], "message": "?"}, "server_error", True),
        ("model is busy", "server_error", True),
    ],
)
def test_classes_of_an_error_inside_status_200(error, error_class, retryable):
    """OpenRouter answers 200 with an error once the model has begun; its code then counts as a status."""
    classified = error_in_body(error, ENDPOINT)
    assert (classified.error_class, classified.retryable) == (error_class, retryable)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1e300"}, 86_400.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 13:00:30 -0000"}, 3630.0),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
    ],
)
def test_retry_after_forms(headers, seconds):
    """Milliseconds, seconds, HTTP date; an invalid value counts as none, and no value overflows a timedelta."""
    assert retry_after_seconds(headers, now=NOW) == seconds


def test_retry_after_is_kept_only_where_a_retry_makes_sense():
    """A permanent error has no Retry-After."""
    assert of_status(503, headers={"retry-after": "3"}).retry_after_seconds == 3
    assert of_status(400, headers={"retry-after": "3"}).retry_after_seconds is None


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (401, "set TURNGATE_OPENAI_API_KEY to a valid one"),
        (402, "add credit"),
        (404, "no model named 'gpt-x' at http://provider/v1"),
        (307, "set TURNGATE_OPENAI_BASE_URL"),
        (413, "use a model with a larger context"),
    ],
)
def test_messages_say_the_fix(status, fix):
    """The person on call reads what to do."""
    assert fix in of_status(status).message


def test_401_without_a_key_asks_for_one():
    """The provider refused no key, because none was sent."""
    anonymous = Endpoint(url="http://provider/v1", model="gpt-x")
    assert "wants a key; set TURNGATE_OPENAI_API_KEY" in error_of_status(401, {}, b"", anonymous).message


@pytest.mark.parametrize("echo", ["tk_secret_1", "sk-proj-abcdefgh12345678", "Bearer abc.def"])
def test_a_key_in_the_providers_message_is_removed(echo):
    """No key and nothing that looks like one reaches a message, wherever the provider echoes it."""
    for error in (
        of_status(401, {"message": f"Incorrect API key provided: {echo}."}),
        of_status(500, f"upstream got {echo}"),
        error_in_body({"code": 502, "message": "x", "metadata": {"raw": f"header {echo}"}}, ENDPOINT),
        of_status(307, headers={"location": f"http://elsewhere/?key={echo}"}),
    ):
        assert echo not in f"{error} {error!r} {error.details}"
        assert "***" in error.message


def test_a_long_answer_is_clipped():
    """An error page does not flood the log."""
    assert len(of_status(500, "x" * 100_000).message) < 16_200


def test_the_endpoint_hides_its_key():
    """Its repr, which debuggers and tracebacks with locals show, has no key."""
    assert "tk_secret_1" not in repr(ENDPOINT)
