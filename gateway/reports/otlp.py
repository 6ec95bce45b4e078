"""Makes spans with OpenTelemetry's SDK and sends them to a collector. Imported only where traces are wanted."""

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from gateway.reports.request_spans import Attributes, SpanShape
from gateway.reports.trace_parent import TraceParent

MAX_QUEUED_SPANS = 4096
EXPORT_TIMEOUT_S = 5.0
EXPORT_PERIOD_S = 2.0
FLUSH_TIMEOUT_S = 3.0

NS_PER_MS = 1_000_000


class OTLPExporter:
    """Implements `Exporter`. `endpoint`: base URL of the collector, to which `/v1/traces` is added."""

    def __init__(self, endpoint: str, version: str, epoch: str) -> None:
        resource = Resource({"service.name": "baton-gateway", "service.version": version, "service.instance.id": epoch})
        url = f"{endpoint.rstrip('/').removesuffix('/v1/traces')}/v1/traces"
        self._processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S),
            max_queue_size=MAX_QUEUED_SPANS,
            schedule_delay_millis=EXPORT_PERIOD_S * 1000,
        )
        # the gateway has decided which requests are sampled
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("baton", version)

    def begin(self, name: str, parent: TraceParent | None, at: int) -> tuple[TraceParent, Span]:
        context = None
        if parent is not None:
            above = SpanContext(parent.trace_id, parent.span_id, True, TraceFlags(TraceFlags.SAMPLED))
            context = set_span_in_context(NonRecordingSpan(above))
        span = self._tracer.start_span(name, context, SpanKind.SERVER, start_time=at)
        made = span.get_span_context()
        return TraceParent(made.trace_id, made.span_id, True), span

    def add(self, shape: SpanShape, inside: Span, at: int) -> None:
        context = set_span_in_context(inside)
        begin = at + int(shape.begin * NS_PER_MS)
        span = self._tracer.start_span(shape.name, context, attributes=shape.attributes, start_time=begin)
        for inner in shape.inner:
            self.add(inner, span, at)
        span.end(at + int(shape.end * NS_PER_MS))

    def end(self, span: Span, attributes: Attributes, failed: bool, at: int) -> None:
        span.set_attributes(attributes)
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(at)

    def close(self) -> None:
        self._processor.force_flush(int(FLUSH_TIMEOUT_S * 1000))
        self._processor.shutdown()  # type: ignore[no-untyped-call]
