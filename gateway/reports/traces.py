"""Exports traces of a sample of the requests by OpenTelemetry, as OTLP over HTTP. They contain no text.

A request's spans are made when it has ended, from its record. A thread of the exporter sends them; if the collector is
away or slow, spans are dropped: a bounded number waits (`gateway.reports.otlp`).
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from contracts.errors import ConfigError
from contracts.version import BATON_VERSION
from gateway.reports.request_spans import Attributes, SpanShape, request_attributes, request_spans
from gateway.reports.trace_parent import TRACE_HEADER, TraceParent, read_parent
from infra.config.gateway import GatewayConfig
from infra.redis.records import FinishedRecord

NANOSECONDS_PER_SECOND = 1_000_000_000


class Exporter(Protocol):
    """Makes and sends spans; times in ns since 1970, spans as its library has them."""

    def begin(self, name: str, parent: TraceParent | None, at: int) -> tuple[TraceParent, Any]: ...

    def add(self, shape: SpanShape, inside: Any, at: int) -> None: ...

    def end(self, span: Any, attributes: Attributes, failed: bool, at: int) -> None: ...

    def close(self) -> None: ...


class RequestTrace:
    """The trace of one HTTP request, which may have several prompts."""

    def __init__(self, exporter: Exporter, name: str, parent: TraceParent | None, received: float) -> None:
        """`received`: local time, s."""
        self._exporter = exporter
        self._received_at = time.time_ns() - int((time.monotonic() - received) * NANOSECONDS_PER_SECOND)
        self.position, self._span = exporter.begin(name, parent, self._received_at)
        self._attributes: Attributes = {}
        self._failed = False

    @property
    def id(self) -> str:
        return f"{self.position.trace_id:032x}"

    def headers(self) -> dict[str, str]:
        return {TRACE_HEADER: self.position.header()}

    def ended(self, record: FinishedRecord) -> None:
        """Adds the spans of one of its requests. The last record's attributes remain."""
        self._attributes = request_attributes(record)
        self._failed |= record.outcome in ("failed", "refused")
        for shape in request_spans(record):
            self._exporter.add(shape, self._span, self._received_at)

    def close(self) -> None:
        self._exporter.end(self._span, self._attributes, self._failed, time.time_ns())


class Traces:
    """Decides which requests are traced: a share of them, and those whose client's own trace is sampled."""

    def __init__(self, exporter: Exporter, share: float, draw: Callable[[], float] = random.random) -> None:
        self._exporter = exporter
        self._share = share
        self._draw = draw

    def begin(self, headers: Mapping[str, str], name: str, received: float) -> RequestTrace | None:
        """Returns None for a request that is not sampled. `name`: of the root span."""
        said = headers.get(TRACE_HEADER)
        parent = read_parent(said) if said else None
        sampled = parent.sampled if parent is not None else self._draw() < self._share
        return RequestTrace(self._exporter, name, parent, received) if sampled else None

    def close(self) -> None:
        """Sends what waits, within a few seconds. Blocks."""
        self._exporter.close()


def open_traces(config: GatewayConfig, epoch: str) -> Traces | None:
    """Returns None without `--trace-endpoint`. Raises `ConfigError` for a bad URL, or without OpenTelemetry."""
    endpoint = config.trace_endpoint
    if not endpoint or not config.trace_sample:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError("trace_endpoint", endpoint, "a collector's URL begins with http:// or https://")
    try:
        from gateway.reports.otlp import OTLPExporter  # needs an extra, and takes 0.3 s
    except ImportError:
        why = "OpenTelemetry is not installed: it is in the extra otel of pyproject.toml"
        raise ConfigError("trace_endpoint", endpoint, why) from None
    return Traces(OTLPExporter(endpoint, BATON_VERSION, epoch), config.trace_sample)
