"""An OpenTelemetry collector for tests: it takes OTLP over HTTP, as protobuf, and keeps the spans."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Received spans, in the order of their arrival."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.bodies = b""  # of all requests

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def inside(self, span: Span) -> list[str]:
        """Returns the names of the spans directly inside a span, by their begin."""
        inner = [each for each in self.spans if each.parent_span_id == span.span_id]
        return [each.name for each in sorted(inner, key=lambda each: (each.start_time_unix_nano, each.name))]


def attributes(span: Span) -> dict[str, object]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            collector.bodies += body
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    collector.spans += scope.spans
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
