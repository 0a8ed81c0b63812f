"""A local HTTP server whose answers and faults a test scripts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], object]
ENDLESS = 1 << 40


@dataclass
class Does:
    """The response to one request.

    Attributes:
        status: Status code.
        body: An object to send as JSON, or raw bytes.
        headers: Further headers.
        silent: True to send no response.
        drops: Close the connection "at once", or "in the middle" of the body.
        drips: Bytes to send again and again after the header, or after `raw`.
        every_s: Pause between them.
        raw: Bytes to send in place of status, header and body.
    """

    status: int = 200
    body: object = b""
    headers: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    drops: str = ""
    drips: bytes = b""
    every_s: float = 0.05
    raw: bytes | None = None


@dataclass
class Server:
    """The received requests, and the scripted responses to the next ones.

    Attributes:
        url: Address of the server.
        answer: Function from a request's body to the body of a good response.
        faults: Responses to the first requests; later requests get good responses.
        bodies: Bodies of all requests, in their order.
        headers: Headers of all requests.
        closed: Set when the server stops.
    """

    url: str
    answer: Answer
    faults: list[Does] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(answer: Answer, *faults: Does) -> Iterator[Server]:
    """Run a server for the duration of a `with` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                server.bodies.append(body)
                server.headers.append(dict(self.headers))
                does = server.faults.pop(0) if server.faults else None
            self._do(does or Does(body=server.answer(body)))

        def _do(self, does: Does) -> None:
            if does.silent:
                server.closed.wait()
            if does.silent or does.drops == "at once":
                self.close_connection = True
                self.connection.close()
                return
            content = does.body if isinstance(does.body, bytes) else json.dumps(does.body).encode()
            try:
                if does.raw is None:
                    length = ENDLESS if does.drips else len(content) + 99 * bool(does.drops)
                    self.send_response(does.status)
                    for name, value in {"Content-Length": str(length), **does.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                self.wfile.write(content if does.raw is None else does.raw)
                while does.drips and not server.closed.wait(does.every_s):
                    self.wfile.write(does.drips)
            except OSError:  # the client has disconnected
                pass

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(OSError, ValueError):
                super().handle()

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    server = Server(f"http://127.0.0.1:{listening.server_port}/v1", answer, list(faults))
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closed.set()
        listening.shutdown()
        listening.server_close()


def chat(text: object) -> dict[str, Any]:
    """Return a response body of chat/completions."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 7, "completion_tokens": 1}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


def prompt_of(body: dict[str, Any]) -> str:
    """Return the prompt in a request body of chat/completions."""
    return str(body["messages"][0]["content"])
