"""What a request looks like to others: in Redis while it runs, in Redis when it has ended, and to its client."""

from core.messages import Failed
from core.records import FinishedRecord, Outcome, RequestRecord
from core.records import State as RecordState
from core.slo import SLO
from gateway.errors import APIError, failed, timed_out
from gateway.request import State
from gateway.stream import Stream

_STATES: dict[State, RecordState] = {
    State.QUEUED: "queued",
    State.PREFILL: "prefill",
    State.DECODE: "decode",
}
_OUTCOMES: dict[State, Outcome] = {
    State.FINISHED: "finished",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}


def request_record(stream: Stream, since: float) -> RequestRecord:
    """A request in progress. `since` is its receipt, in the server's time."""
    request = stream.request
    return RequestRecord(
        request=request.key.request,
        state=_STATES[request.state],
        since=since,
        prompt_tokens=len(request.prompt),
        output_tokens=len(request.tokens),
        prefill_worker=stream.workers[0],
        decode_worker=stream.workers[1],
    )


def finished_record(stream: Stream, reason: str, model: str, slo: SLO, now: float, ended_at: float) -> FinishedRecord:
    """A request that has ended, now; `ended_at` is the same moment in the server's time."""
    request, timings = stream.request, stream.timings(now)
    return FinishedRecord(
        request=request.key.request,
        outcome=_OUTCOMES[request.state],
        reason=reason,
        ended_at=ended_at,
        model=model,
        prompt_tokens=len(request.prompt),
        output_tokens=timings.output_tokens,
        ttft_ms=timings.ttft_ms,
        tpot_ms=timings.tpot_ms(),
        e2e_ms=timings.e2e_ms,
        queue_ms=request.stages.queue_ms,
        prefill_ms=request.stages.prefill_ms,
        handoff_ms=request.stages.handoff_ms,
        handoff_bytes=request.stages.handoff_bytes,
        cached_tokens=request.stages.cached_tokens,
        prefill_worker=stream.workers[0],
        decode_worker=stream.workers[1],
        attempts=request.attempts,
        good=request.state is State.FINISHED and slo.met_by(timings),
    )


def error_of(message: Failed, timeout: float) -> APIError:
    """A worker's failure as its client sees it."""
    said = message.message or message.reason
    match message.reason:
        case "deadline":
            return timed_out(timeout)
        case "capacity":
            return APIError(400, f"the request can never fit: {said}", code="capacity")
    return failed(f"the worker failed: {said}", message.reason)
