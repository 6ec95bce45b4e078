"""Answers a chat over HTTP as the gateway does and, given a URL, records it in Redis: for tests of the page alone."""

import itertools
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.dashboard.samples import GATEWAY, end, finished

WORDS = ("Once ", "a ", "fox ", "held ", "a ", "<b>lantern</b>", ".")


class StandIn:
    """Serves while it is entered. The question decides: `refuse`, `fail inside`, `break off`; else a story.

    `no stream`, `no choices` and `count below zero` are answers that no OpenAI server gives.

    `stats`: the answer to GET /stats, or the answers one after the other, of which the last stays.
    """

    def __init__(self, redis: str = "", stats: dict[str, Any] | list[dict[str, Any]] | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []  # of measured loads
        self._server = _Server(redis, self.asked, self.marks, stats)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "StandIn":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    request_queue_size = 64  # connections at once that a busy machine has not yet taken

    def __init__(
        self,
        redis: str,
        asked: list[dict[str, Any]],
        marks: list[dict[str, Any]],
        stats: dict[str, Any] | list[dict[str, Any]] | None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.stats = list(stats) if isinstance(stats, list) else [stats] if stats is not None else []
        self.redis, self.asked, self.marks, self.numbers = redis, asked, marks, itertools.count(1)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints errors, but not that a client has gone in the middle of its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        if self.path == "/stats" and self.server.stats:
            self._json(200, self.server.stats.pop(0) if len(self.server.stats) > 1 else self.server.stats[0])
            return
        self._json(200, {"object": "list", "data": [{"id": "demo", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/load_runs":
            self.server.marks.append(body)
            self._json(200, {"run": body["run"]})
            return
        self.server.asked.append(body)
        if self.path == "/v1/completions":
            self._complete(body)
            return
        question = body["messages"][0]["content"]
        if question == "refuse":
            self._json(400, {"error": {"message": "the prompt is <too> long", "type": "invalid_request_error"}})
            return
        if question == "no stream":
            self._json(200, {"choices": [{"message": {"content": "Hello."}}], "usage": {"completion_tokens": 3}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if question == "no choices":
            self._data({"usage": {"completion_tokens": 3}})
            self.wfile.write(b"data: [DONE]\n\n")
            return
        number = next(self.server.numbers)
        self.wfile.write(b": keeps the connection alive\n\n")
        self._chunk(number, {"role": "assistant", "content": ""})
        if question == "fail inside":
            self._data({"error": {"message": "a worker was lost"}})
            return
        for word in WORDS:
            self._chunk(number, {"content": word})
        if question == "break off":
            return
        if (body.get("stream_options") or {}).get("include_usage"):
            tokens = -7 if question == "count below zero" else 7
            self._data({"id": f"chatcmpl-{GATEWAY}-{number:x}", "choices": [], "usage": {"completion_tokens": tokens}})
        if self.server.redis:
            end(self.server.redis, finished(number, output_tokens=7, e2e_ms=80.0))
        self.wfile.write(b"data: [DONE]\n\n")

    def _complete(self, body: dict[str, Any]) -> None:
        """As many tokens as were asked for, each as a piece of text; a prompt of zeros is never answered."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if not any(body["prompt"]):
            self.rfile.read(1)  # until the client has gone
            return
        for number in range(body["max_tokens"]):
            self._data({"id": "cmpl-1", "choices": [{"index": 0, "text": f"w{number}"}]})
        self._data({"id": "cmpl-1", "choices": [], "usage": {"completion_tokens": body["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, number: int, delta: dict[str, str]) -> None:
        self._data({"id": f"chatcmpl-{GATEWAY}-{number:x}", "choices": [{"index": 0, "delta": delta}]})

    def _data(self, body: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, status: int, body: dict[str, Any]) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)
