"""Measures a gateway's processor time for reports about requests: traces of 1% of the requests, and the access log.

Requests are short, because reports cost once for each request. The cost is the processor time of all the gateway's
threads; a collector in the benchmark's process takes the spans and drops them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from benchmarks.front.system import Begin, Shape

REQUESTS_PER_ROUND = 1000
OUTPUT_TOKENS_PER_REQUEST = 64
REQUESTS_AT_ONCE = 64
PAUSE_S = 0.01  # between a worker's steps
NO_REPORTS_OPTIONS = ("--access-log=false",)


def tokens_per_core_second(begin: Begin, api: str, words: Sequence[str]) -> float:
    """`words`: further options of the gateway."""
    with begin(Shape(pause=PAUSE_S, gateway_words=tuple(words))) as system:
        spent = system.processor_seconds()
        with system.client(api, REQUESTS_PER_ROUND, OUTPUT_TOKENS_PER_REQUEST, together=REQUESTS_AT_ONCE) as saw:
            seen = saw()
        spent = system.processor_seconds() - spent
        system.stop_workers()
    return sum(one.tokens[-1] for one in seen if one.tokens) / spent


@contextmanager
def tracing() -> Iterator[tuple[str, ...]]:
    """Yields the options of a gateway that sends traces to a collector, which ends with the context."""

    class Sink(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield ("--trace-endpoint", f"http://127.0.0.1:{server.server_address[1]}", "--trace-sample", "0.01")
        finally:
            server.shutdown()
            thread.join()
