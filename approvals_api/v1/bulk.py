"""Many decisions at once."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from approvals_api.http.dependencies import OperatorDep, ServicesDep
from approvals_api.requests import bulk
from approvals_api.requests.answer_check import MAX_MESSAGE_CHARS
from approvals_api.requests.bulk import MAX_ITEMS, BulkVerb
from approvals_api.requests.decide import MAX_DECISION_ID_CHARS
from approvals_api.v1.parameters import Id, IdempotencyKey
from turngate.wire.bulk import DecidedItems

router = APIRouter(tags=["requests"])


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class BulkItem(_Body):
    """One request, with the digest of the call as it was shown. ``decision_id``: as its own Idempotency-Key."""

    request_id: Id
    digest: str
    decision_id: Annotated[str, Field(min_length=1, max_length=MAX_DECISION_ID_CHARS)] | None = None


class BulkBody(_Body):
    """Decide requests of one tool and one rule alike; none of high risk."""

    decision: BulkVerb
    items: Annotated[list[BulkItem], Field(min_length=1, max_length=MAX_ITEMS)]
    message: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)] = ""


@router.post("/requests/decisions")
async def decide_requests(
    body: BulkBody, services: ServicesDep, principal: OperatorDep, idempotency_key: IdempotencyKey = None
) -> DecidedItems:
    """Decide many requests alike, each with an answer of its own.

    422 with `invalid_bulk`, and nothing sent, unless all are of one tool and one rule and none is of high risk. The same
    body with the same Idempotency-Key gets the first answers.
    """
    return await bulk.decide_many(
        services,
        principal,
        verb=body.decision,
        items=[
            bulk.Item(request_id=each.request_id, digest=each.digest, decision_id=each.decision_id)
            for each in body.items
        ],
        message=body.message,
        key=idempotency_key,
    )
