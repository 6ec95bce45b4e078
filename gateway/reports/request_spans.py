"""Lays out the spans of an ended request from its record, as a tree. Pure.

    queue                      at the gateway, until the first attempt begins
    attempt                    one for each job, with its workers and its end; the one with the first token has:
      prefill queue            until the prompt has its blocks
      prefill                  until the first token
      handoff                  of the KV blocks, beside prefill and beyond it
      decode                   from the first token on, as in each later attempt

Workers measure durations, the gateway moments: prefill is laid so that it ends with the first token.
"""

from collections.abc import Sequence

from msgspec import Struct

from infra.redis.records import AttemptRecord, FinishedRecord

Attributes = dict[str, str | int | float | bool]


class SpanShape(Struct, frozen=True):
    """A span; times in ms since the request was received."""

    name: str
    begin: float
    end: float
    attributes: Attributes = {}
    inner: Sequence["SpanShape"] = ()


def request_attributes(record: FinishedRecord) -> Attributes:
    """Returns what the whole request is described by: OpenTelemetry's names for generative AI, then our own."""
    return {
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "baton.request": record.request,
        "baton.tenant": record.tenant,
        "baton.outcome": record.outcome,
        "baton.reason": record.reason,
        "baton.good": record.good,
        "baton.samples": record.samples,
        "baton.attempts": record.attempts,
        "baton.cached_tokens": record.cached_tokens,
        "baton.ttft_ms": record.ttft_ms,
        "baton.tpot_ms": record.tpot_ms,
    }


def request_spans(record: FinishedRecord) -> list[SpanShape]:
    begun = record.tries[0].begun_ms if record.tries else record.e2e_ms
    first = next((each for each in record.tries if record.output_tokens and each.ended_ms >= record.ttft_ms), None)
    return [SpanShape("queue", 0.0, begun), *(_attempt(record, each, each is first) for each in record.tries)]


def _attempt(record: FinishedRecord, tried: AttemptRecord, has_first_token: bool) -> SpanShape:
    begin, end = tried.begun_ms, max(tried.begun_ms, tried.ended_ms)
    inner: list[SpanShape] = []
    if has_first_token:
        token = min(max(record.ttft_ms, begin), end)
        prefill = max(begin, token - record.prefill_ms)
        inner = [SpanShape("prefill queue", begin, prefill), SpanShape("prefill", prefill, token)]
        if record.handoff_ms:
            inner.append(SpanShape("handoff", prefill, min(end, prefill + record.handoff_ms), _handoff(record)))
        inner.append(SpanShape("decode", token, end))
    elif record.output_tokens and begin >= record.ttft_ms:
        inner = [SpanShape("decode", begin, end)]
    workers: Attributes = {
        "baton.attempt": tried.number,
        "baton.samples": tried.samples,
        "baton.prefill_worker": tried.prefill_worker,
        "baton.decode_worker": tried.decode_worker,
        "baton.end": tried.end,
    }
    return SpanShape("attempt", begin, end, workers, inner)


def _handoff(record: FinishedRecord) -> Attributes:
    return {
        "baton.handoff_bytes": record.handoff_bytes,
        "baton.transport": record.transport,
        "baton.grant_ms": record.grant_ms,
        "baton.exposed_ms": record.exposed_ms,
    }
