"""An MCP server that answers with exactly the bytes that a test wrote: ``python raw_server.py DIR``.

``DIR/tools.json`` is its list of tools. ``DIR/NAME.answer`` is what it writes for a call of NAME, with the call's id in place of
``%ID%``. It writes a line to ``DIR/calls`` for each call. :func:`raw_http_server` is the same over HTTP: there an answer that
begins with ``HTTP/`` is the whole response, and each other one is the response's JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread


def answer_to(message: dict[str, object], directory: Path) -> bytes | None:
    number = message.get("id")
    params = message.get("params")
    assert params is None or isinstance(params, dict)

    def result(value: object) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": number, "result": value}).encode()

    match message["method"]:
        case "initialize":
            about = {"name": "raw", "version": "1"}
            version = (params or {})["protocolVersion"]
            return result({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about})
        case "tools/list":
            return result({"tools": json.loads((directory / "tools.json").read_text())})
        case "tools/call":
            assert params is not None
            with (directory / "calls").open("a") as calls:
                calls.write(f"{params['name']}\n")
            file = directory / f"{params['name']}.answer"
            if file.exists():
                return file.read_bytes().replace(b"%ID%", json.dumps(number).encode())
            return result({"content": [{"type": "text", "text": json.dumps(params.get("arguments"))}]})
        case _ if number is not None:
            error = {"code": -32601, "message": "no"}
            return json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()
    return None


def main(directory: Path) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        answer = answer_to(message, directory)
        if message["method"] == "tools/list":
            sys.stdout.buffer.write(b"a line that is no message\n")
        if answer is not None:
            sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


@contextmanager
def raw_http_server(directory: Path) -> Iterator[str]:
    """Yields its address. A response whose headers promise more than was written stays open."""
    over = Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_words: object) -> None:
            pass

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = answer_to(message, directory)
            if answer is None:
                answer = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
            elif not answer.startswith(b"HTTP/"):
                answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + answer
            self.wfile.write(answer)
            if b"\r\nContent-Length: 999999999\r\n" in answer[:500]:
                self.wfile.flush()
                over.wait()
            self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            over.set()
            server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
