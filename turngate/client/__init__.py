"""The typed client of Turngate's API: start runs, follow them, read the inbox, decide.

    from turngate.client import TurngateClient
    from turngate.wire.orders import DecisionOrder

    async with TurngateClient("http://127.0.0.1:8321", token="…") as client:
        run = await client.start_run(agent="support", text="Refund order 1042.")
        async for event in client.follow_events(run.id):
            if event.type == "request.opened":
                request = await client.get_request(str(event.payload["request_id"]))
                await client.decide(request.id, DecisionOrder(verb="approve", digest=request.digest))
        print((await client.get_run(run.id)).final_text)

:class:`SyncTurngateClient` is the same without ``await``. Answers are the models of :mod:`turngate.wire`, errors those of
:mod:`turngate.domain.errors`. Imports httpx and pydantic, and nothing of the server: neither FastAPI nor SQLAlchemy nor
Temporal.
"""

from turngate.client.asynchronous import TurngateClient
from turngate.client.calls import Call
from turngate.client.event_stream import StreamItem
from turngate.client.retries import Retries
from turngate.client.synchronous import SyncTurngateClient

__all__ = ["Call", "Retries", "StreamItem", "SyncTurngateClient", "TurngateClient"]
