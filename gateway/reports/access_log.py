"""Writes a log line for each request that has ended: who asked, how much, how long, and how it ended. Never text."""

import logging

from infra.process.log_format import FieldValue
from infra.process.log_lines import ACCESS_LOGGER
from infra.redis.records import FinishedRecord

log = logging.getLogger(ACCESS_LOGGER)


def log_ended(record: FinishedRecord, trace: str) -> None:
    """`trace`: id of the request's trace, if it is sampled."""
    if log.isEnabledFor(logging.INFO):
        log.info("request ended", extra={"fields": access_fields(record, trace)})


def access_fields(record: FinishedRecord, trace: str) -> dict[str, FieldValue]:
    """Returns the fields of a line: times in ms, and workers by their epochs."""
    fields: dict[str, FieldValue] = {
        "request": record.request,
        "tenant": record.tenant,
        "outcome": record.outcome,
        "reason": record.reason,
        "good": record.good,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "samples": record.samples,
        "attempts": record.attempts,
        "ttft_ms": round(record.ttft_ms, 1),
        "tpot_ms": round(record.tpot_ms, 2),
        "e2e_ms": round(record.e2e_ms, 1),
        "queue_ms": round(record.queue_ms, 1),
        "prefill_ms": round(record.prefill_ms, 1),
        "handoff_ms": round(record.handoff_ms, 1),
        "prefill_worker": record.prefill_worker,
        "decode_worker": record.decode_worker,
        "trace": trace,
    }
    return {name: value for name, value in fields.items() if value != ""}
