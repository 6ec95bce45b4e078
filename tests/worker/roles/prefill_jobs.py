"""Makes the events that a prefill worker's policy receives."""

from typing import Any

from contracts.messages.job import DecodeJob, PrefillJob
from kvtransfer.events import Closed
from tests.worker.role_bench import LIMITS, SAMPLING, Bench, prompted
from worker.roles.prefill import PrefillPolicy


def job(number: int, tokens: int = 10, peer: str = "decode", **changes: Any) -> PrefillJob:
    """Makes request `r<number>`, whose text begins like all others'."""
    fields: dict[str, Any] = {
        "request": f"r{number}",
        "attempt": 1,
        "sender": "gateway",
        "receiver": "me",
        "sampling": SAMPLING,
        "limits": LIMITS,
        "deadline": 100.0,
        "queued_at": 0.5,
        "decode_epoch": peer,
        "decode_address": "tcp://x",
    }
    return PrefillJob(**(fields | prompted(tokens, changes)))


def whole(job: PrefillJob) -> DecodeJob:
    """Makes the job that asks for the same request as a whole, as a gateway does without a decode worker."""
    return DecodeJob(**{name: getattr(job, name) for name in DecodeJob.__struct_fields__})


def closed(handoff: int, outcome: Any, reason: str = "", retryable: bool = True) -> Closed:
    """Makes the end of a handoff."""
    return Closed(handoff=handoff, outcome=outcome, reason=reason, retryable=retryable, bytes=640, digest=1, ms=1.0)


def prefill_worker(**settings: Any) -> tuple[Bench, PrefillPolicy]:
    """Makes a prefill worker's policy on a bench of these settings."""
    bench = Bench(**settings)
    return bench, PrefillPolicy(bench.parts.of_policy())
