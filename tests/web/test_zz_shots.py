import json
import os
import re
from pathlib import Path
import asyncio

HOSTILE = "Deploy <b>now</b>\u202etxt.exe\u200b \x1b[31mred\x1b[0m https://evil.example"

async def test_shots(site, open_page):
    out = Path("/tmp/shots")
    reqs = {}
    reqs["refund"] = await site.gated("refund", '{"order": "A-7", "cents": 12000, "rate": 1.10, "note": "two\\nlines", "tags": ["vip", "late"], "extra": {"a": [1, {"b": null}]}}', "The customer waited three weeks. I refund the full amount.")
    reqs["edit"] = await site.gated("edit_file", '{"path": "notes.txt", "old": "the old line", "new": "a new line"}')
    reqs["shell"] = await site.gated("shell", '{"argv": ["rm", "-rf", "build dir", "--", "x;y"]}', HOSTILE)
    reqs["deploy"] = await site.gated("deploy", json.dumps({"target": HOSTILE}), HOSTILE)
    reqs["question"] = await site.gated("ask_person", '{"question": "Which region should the report cover?", "choices": ["Europe", "Asia\\u200b", "Both"]}')
    reqs["lost"] = await site.lost("refund", '{"order": "B-1", "cents": 5}')
    done = await site.gated("refund", '{"order": "A-9", "cents": 12000}')
    await site.stack.decide(done, "edit", args='{"order": "A-9", "cents": 100}')
    await site.ended(done)
    reqs["done"] = done
    rej = await site.gated("refund", '{"order": "A-9", "cents": 12000}')
    await site.stack.decide(rej, "reject", message="Too much money.\nAsk the customer first.")
    await site.ended(rej)
    reqs["rejected"] = rej
    pages = {"inbox": "/", "all": "/?status=all", "runs": "/runs", "new": "/runs/new", "run": f"/runs/{done.run_id}", "run-live": f"/runs/{reqs['refund'].run_id}", "run-rej": f"/runs/{rej.run_id}", "login": "/login?link=x", "login0": "/login", "missing": "/requests/rq_none", "empty": "/?status=expired"}
    pages |= {k: f"/requests/{r.id}" for k, r in reqs.items()}
    wanted = os.environ.get("SHOTS", "").split(",")
    for mode, opts in {"light": dict(viewport={"width": 1280, "height": 900}), "dark": dict(viewport={"width": 1280, "height": 900}, color_scheme="dark"), "small": dict(viewport={"width": 320, "height": 640})}.items():
        page = await open_page("/", **opts)
        for name, path in pages.items():
            if wanted != [""] and name not in wanted: continue
            await page.goto(path)
            if name in ("refund", "lost"):
                await page.evaluate("document.querySelectorAll('#edit, #happened').forEach(d => d.open = true)")
            await page.screenshot(path=out / f"{name}-{mode}.png", full_page=True)
            if mode == "small":
                w = await page.evaluate("document.documentElement.scrollWidth")
                if w > 320: print("WIDE", name, w)
