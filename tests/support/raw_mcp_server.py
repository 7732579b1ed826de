"""An MCP server that answers with exactly the bytes that a test wrote: ``python raw_mcp_server.py DIR``.

``DIR/tools.json`` is its list of tools. ``DIR/NAME.answer`` is what it writes for a call of NAME, with the call's id in place of
``%ID%``. It writes a line to ``DIR/calls`` for each call.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(directory: Path) -> None:
    def say(data: bytes) -> None:
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()

    def answer(number: object, result: object) -> None:
        say(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode())

    for line in sys.stdin:
        message = json.loads(line)
        number, params = message.get("id"), message.get("params") or {}
        match message["method"]:
            case "initialize":
                about = {"name": "raw", "version": "1"}
                version = params["protocolVersion"]
                answer(number, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about})
            case "tools/list":
                say(b"a line that is no message")
                answer(number, {"tools": json.loads((directory / "tools.json").read_text())})
            case "tools/call":
                with (directory / "calls").open("a") as calls:
                    calls.write(f"{params['name']}\n")
                file = directory / f"{params['name']}.answer"
                if file.exists():
                    say(file.read_bytes().replace(b"%ID%", json.dumps(number).encode()))
                else:
                    answer(number, {"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]})
            case _ if number is not None:
                error = {"code": -32601, "message": "no"}
                say(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
