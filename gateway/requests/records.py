"""Describes requests for others: in Redis while they run and after their end, and failures for clients."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import reduce

from contracts.ids import NO_TICKET, Ticket
from contracts.messages.gateway import REASON_GRAMMAR_FAILED, REASON_NOTHING_ALLOWED, Failed
from contracts.slo import SLO, Objective
from gateway.errors import APIError, failed, timed_out
from gateway.requests.attempt import Attempt
from gateway.requests.request import Request
from gateway.requests.sample import State, merged
from infra.redis.records import AttemptRecord, FinishedRecord, Outcome, RequestRecord
from infra.redis.records import State as RecordState

_RECORD_STATES: dict[State, RecordState] = {
    State.QUEUED: "queued",
    State.PREFILL: "prefill",
    State.DECODE: "decode",
}
_RECORD_OUTCOMES: dict[State, Outcome] = {
    State.FINISHED: "finished",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
_GRAVEST_FIRST = (State.FAILED, State.CANCELLED, State.FINISHED)


def request_record(request: Request, since: float, lines: Mapping[str, Sequence[Ticket]]) -> RequestRecord:
    """Describes a request in progress. `since` is its receipt, in the server's time, s.

    `lines` are the sorted tickets of the gateway's jobs that no worker has taken yet, by worker epoch.
    """
    living = [sample for sample in request.samples if not sample.ended]
    last = min(living, key=lambda sample: list(_RECORD_STATES).index(sample.state))
    ticket = last.attempt.ticket if last.attempt is not None else NO_TICKET
    return RequestRecord(
        request=request.id,
        state=_RECORD_STATES[last.state],
        since=since,
        prompt_tokens=len(last.prompt.token_ids),
        output_tokens=sum(len(sample.tokens) for sample in request.samples),
        prefill_worker=last.route.prefill,
        decode_worker=last.route.decode,
        ahead=bisect_left(lines.get(last.route.first(), ()), ticket),
    )


def finished_record(request: Request, model: str, usual: SLO, now: float, ended_at: float) -> FinishedRecord:
    """Describes a request whose samples have all ended, at local time `now` and server time `ended_at`, s.

    It is good by its own objective, or by `usual` if it has none. It has failed if any sample has, and was cancelled if
    any was; it was refused if all failed samples were refused. Its workers are the first sample's workers.
    """
    samples = request.samples
    state = next(state for state in _GRAVEST_FIRST if any(sample.state is state for sample in samples))
    refused = state is State.FAILED and all(one.refused for one in request.streams if one.sample.state is state)
    reasons = [sample.reason for sample in samples if sample.state is state]
    timings = [stream.timings(now) for stream in request.streams]
    seen = [one for one in timings if one.output_tokens] or timings
    objective = samples[0].admitted.objective or Objective(usual.ttft_ms, usual.tpot_ms)
    slo = objective.limits(usual)
    stages = reduce(merged, (sample.stages for sample in samples))
    return FinishedRecord(
        request=request.id,
        outcome="refused" if refused else _RECORD_OUTCOMES[state],
        reason="length" if "length" in reasons else reasons[0],
        ended_at=ended_at,
        model=model,
        prompt_tokens=len(samples[0].prompt.token_ids),
        output_tokens=sum(one.output_tokens for one in timings),
        ttft_ms=max(one.ttft_ms for one in seen),
        tpot_ms=max(one.tpot_ms() for one in seen),
        e2e_ms=max(one.e2e_ms for one in seen),
        queue_ms=stages.queue_ms,
        prefill_ms=stages.prefill_ms,
        handoff_ms=stages.handoff_ms,
        handoff_bytes=stages.handoff_bytes,
        cached_tokens=stages.cached_tokens,
        prefill_worker=samples[0].route.prefill,
        decode_worker=samples[0].route.decode,
        attempts=request.attempts,
        good=state is State.FINISHED and all(slo.met_by(one) for one in timings),
        samples=len(samples),
        grant_ms=stages.grant_ms,
        send_ms=stages.send_ms + stages.land_ms,
        exposed_ms=stages.exposed_ms,
        transport=stages.way.transport if stages.way else "",
        sealed=bool(stages.way and stages.way.sealed),
        codec=stages.way.codec if stages.way else "none",
        objective=objective,
        tenant=samples[0].prompt.tenant if samples[0].admitted.key else "",  # else it is a salt
        tries=tuple(_attempt_record(attempt, request.received) for attempt in request.tries),
    )


def _attempt_record(attempt: Attempt, received: float) -> AttemptRecord:
    """`received`: local time, s."""
    return AttemptRecord(
        number=attempt.number,
        samples=attempt.samples,
        begun_ms=1000 * (attempt.begun - received),
        ended_ms=1000 * (attempt.ended - received),
        prefill_worker=attempt.route.prefill,
        decode_worker=attempt.route.decode,
        end=attempt.end,
    )


def error_of(message: Failed, timeout: float) -> APIError:
    """Returns the client's error for a worker's failure; `timeout` is the request's, in seconds."""
    said = message.message or message.reason
    match message.reason:
        case "deadline":
            return timed_out(timeout)
        case reason if reason in (REASON_NOTHING_ALLOWED, REASON_GRAMMAR_FAILED):
            return APIError(400, said, code=reason)
        case "capacity":
            return APIError(400, f"the request can never fit: {said}", code="capacity")
    return failed(f"the worker failed: {said}", message.reason)
