"""What a request looks like to others: in Redis while it runs, in Redis when it has ended, and to its client."""

from functools import reduce

from core.messages import Failed
from core.records import FinishedRecord, Outcome, RequestRecord
from core.records import State as RecordState
from core.slo import SLO
from gateway.errors import APIError, failed, timed_out
from gateway.requests.request import Group
from gateway.requests.sample import State, merged

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
_GRAVEST = (State.FAILED, State.CANCELLED, State.FINISHED)


def request_record(group: Group, since: float) -> RequestRecord:
    """A request in progress. `since` is its receipt, in the server's time."""
    living = [stream for stream in group.streams if not stream.request.ended]
    last = min(living, key=lambda stream: list(_STATES).index(stream.request.state))
    return RequestRecord(
        request=group.request,
        state=_STATES[last.request.state],
        since=since,
        prompt_tokens=len(last.request.prompt),
        output_tokens=sum(len(stream.request.tokens) for stream in group.streams),
        prefill_worker=last.workers[0],
        decode_worker=last.workers[1],
    )


def finished_record(group: Group, model: str, slo: SLO, now: float, ended_at: float) -> FinishedRecord:
    """A request whose samples have all ended; `ended_at` is now in the server's time.

    It has failed if any sample has, and was cancelled if any was. Its workers are those of the first sample.
    """
    first = group.streams[0]
    state = next(state for state in _GRAVEST if any(stream.request.state is state for stream in group.streams))
    reasons = {stream.reason: None for stream in group.streams if stream.request.state is state}
    timings = [stream.timings(now) for stream in group.streams]
    seen = [one for one in timings if one.output_tokens] or timings
    stages = reduce(merged, (stream.request.stages for stream in group.streams))
    return FinishedRecord(
        request=group.request,
        outcome=_OUTCOMES[state],
        reason="length" if "length" in reasons else next(iter(reasons)),
        ended_at=ended_at,
        model=model,
        prompt_tokens=len(first.request.prompt),
        output_tokens=sum(one.output_tokens for one in timings),
        ttft_ms=max(one.ttft_ms for one in seen),
        tpot_ms=max(one.tpot_ms() for one in seen),
        e2e_ms=max(one.e2e_ms for one in seen),
        queue_ms=stages.queue_ms,
        prefill_ms=stages.prefill_ms,
        handoff_ms=stages.handoff_ms,
        handoff_bytes=stages.handoff_bytes,
        cached_tokens=stages.cached_tokens,
        prefill_worker=first.workers[0],
        decode_worker=first.workers[1],
        attempts=group.attempts,
        good=state is State.FINISHED and all(slo.met_by(one) for one in timings),
        samples=len(group.streams),
        grant_ms=stages.grant_ms,
        send_ms=stages.send_ms + stages.land_ms,
        exposed_ms=stages.exposed_ms,
        transport=stages.way.transport if stages.way else "",
        sealed=bool(stages.way and stages.way.sealed),
        codec=stages.way.codec if stages.way else "none",
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
