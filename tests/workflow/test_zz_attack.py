from __future__ import annotations
import asyncio
from datetime import timedelta
from typing import Any
import pytest
from support.engine import ListModel, Stack, call, says, stack, until
from temporalio.client import Client
from turngate import *
from turngate import tool, OutcomeUnknown, NothingHappened, ToolContext, ToolFailure, Limits
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import runs

class Weird(Exception):
    def __str__(self): raise RuntimeError("no")
    __repr__ = __str__
async def ou_exc(): raise OutcomeUnknown(ConnectionResetError("x"))
async def ou_sur(): raise OutcomeUnknown("a \ud800 b")
async def ou_nul(): raise OutcomeUnknown("a \0 b")
async def ou_empty(): raise OutcomeUnknown("")
async def nh_weird(): raise NothingHappened(Weird())
async def nh_sur(): raise NothingHappened("a \ud800 b")
async def nh_long(): raise NothingHappened("a"*3_000_000)
async def genexit(): raise GeneratorExit
async def huge(): return {"a": "x"*30_000_000}
async def nan(): return {"a": float("nan")}
async def unsay(): raise Weird
async def surr_key(): return {"\ud800": "\udfff"}
async def nul(): return {"\0": "\0"}
ALL=[ou_exc,ou_sur,ou_nul,ou_empty,nh_weird,nh_sur,nh_long,genexit,huge,nan,unsay,surr_key,nul]

async def test_ends(client: Client, sqlite: Database) -> None:
    n: dict[str,int] = {}
    def mk(f):
        name=f.__name__
        async def pay() -> dict[str, Any]:
            """Pay."""
            n[name]=n.get(name,0)+1
            return await f()
        return tool(name=name,effect="once",ask=False,timeout=timedelta(seconds=5))(pay)
    model = ListModel(says(*(call(f.__name__,"{}",f.__name__) for f in ALL)), says("Done."))
    async with stack(client, sqlite, *[mk(f) for f in ALL], model=model, limits=Limits(concurrency=len(ALL))) as engine:
        run = await engine.start()
        import time
        t=time.monotonic()
        seen={}
        while time.monotonic()-t < 30 and len(seen)<len(ALL):
            async with sqlite.read() as conn:
                for r in await requests.of_run(conn, run.id):
                    if r.tool_name not in seen:
                        seen[r.tool_name]=f"{time.monotonic()-t:.1f}s ASK {r.rule} {r.reason[:160]!r}"
                for k,v in (await engine.results(run)).items():
                    if v is not None and k not in seen: seen[k]=f"{time.monotonic()-t:.1f}s {str(v)[:160]}"
            await asyncio.sleep(0.2)
        for f in ALL: print(f.__name__, n.get(f.__name__), seen.get(f.__name__))
        print((await engine.executions(run)).keys())
