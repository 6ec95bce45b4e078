"""Samples that share a job, and the one record of them: without sockets or clocks."""

import pytest

from core.ids import SequenceKey
from core.messages import Emitted, Finish, Limits, Sampling, Stages
from core.slo import SLO
from gateway.reports.metrics import Metrics
from gateway.reports.records import finished_record, request_record
from gateway.requests.request import Group
from gateway.requests.sample import ASK_AFTER, GIVE_UP_AFTER, READD_AFTER, Attempt, Due, Request, Route, State
from gateway.requests.stream import Stream
from gateway.text.detokenizer import BytePieces
from gateway.text.stop import StopStrings

P, D = "prefill", "decode"
BOTH = Route(P, D)


def group_of(samples: int) -> Group:
    metrics = Metrics("m", [], [])

    def stream(sample: int) -> Stream:
        request = Request(SequenceKey("r-1", sample), [5, 6, 7], Sampling(1), Limits(100), 100.0, "ab" * 16, 3)
        return Stream(request, BytePieces(chr).stream(), StopStrings(()), 0.0, False, metrics)

    return Group([stream(sample) for sample in range(samples)])


def begun(samples: int = 3) -> tuple[Group, Attempt]:
    group = group_of(samples)
    attempt = group.begin(group.streams, BOTH, 0.0)
    attempt.add(0.0)
    return group, attempt


def say(group: Group, sample: int, at: float, tokens: int = 1, finish: Finish | None = None) -> None:
    """New tokens of a sample, from the worker that its attempt is with."""
    stream = group.streams[sample]
    attempt, index = stream.request.attempt, len(stream.request.tokens)
    assert attempt is not None
    ids = list(range(65 + index, 65 + index + tokens))
    fresh = stream.request.emitted(D, Emitted("r-1", sample, attempt.number, index, ids, finish), at)
    assert fresh is not None
    stream.take(fresh, at)


def end(group: Group, sample: int, state: State, reason: str) -> None:
    group.streams[sample].request.end(state)
    group.streams[sample].reason = reason


def test_the_first_job_is_for_all_samples() -> None:
    group, attempt = begun()
    job = group.job(attempt, "g", "tcp://d", 50.0)
    assert (job.samples, job.attempt, job.token_ids) == ((0, 1, 2), 1, [5, 6, 7])
    assert (job.salt, job.priority) == ("ab" * 16, 3)


def test_a_job_that_was_taken_is_taken_for_all() -> None:
    group, _ = begun()
    assert not group.started("stranger", 1, 1.0) and not group.started(P, 2, 1.0)
    assert group.started(P, 1, 1.0)
    assert {stream.request.state for stream in group.streams} == {State.PREFILL}
    assert {stream.request.heard for stream in group.streams} == {1.0}


def test_a_late_job_is_added_again_once_for_all() -> None:
    group, attempt = begun()
    assert {stream.request.due(READD_AFTER) for stream in group.streams} == {Due.ADD}
    attempt.add(READD_AFTER)
    assert {stream.request.due(READD_AFTER + 0.1) for stream in group.streams} == {None}


def test_one_samples_tokens_show_that_the_job_was_taken() -> None:
    group, _ = begun()
    say(group, 1, 0.5)
    assert [stream.request.due(READD_AFTER) for stream in group.streams] == [None] * 3
    assert [stream.request.due(ASK_AFTER) for stream in group.streams] == [Due.ASK, None, Due.ASK]


def test_silence_is_of_one_sample() -> None:
    group, _ = begun()
    group.started(P, 1, 0.0)
    say(group, 1, GIVE_UP_AFTER - 1)
    assert [stream.request.due(GIVE_UP_AFTER) for stream in group.streams] == [Due.RETRY, None, Due.RETRY]


def test_a_retry_is_a_job_of_its_own_with_a_number_of_its_own() -> None:
    group, first = begun()
    group.started(P, 1, 1.0)
    say(group, 1, 1.0, tokens=2)
    for sample, number in ((1, 2), (2, 3)):
        group.streams[sample].request.abandon()
        attempt = group.begin([group.streams[sample]], BOTH, 2.0)
        assert attempt.number == number
    assert group.trying(first) == [group.streams[0]]
    second = group.streams[1].request.attempt
    assert second is not None
    job = group.job(second, "g", "tcp://d", 50.0)
    assert (job.samples, job.attempt, job.token_ids, job.prompt_tokens) == ((1,), 2, [5, 6, 7, 65, 66], 3)
    assert group.started(P, 2, 3.0)
    states = [stream.request.state for stream in group.streams]
    assert states == [State.PREFILL, State.PREFILL, State.QUEUED], "`Started` names one job"


def test_what_is_added_again_is_for_those_that_still_try_it() -> None:
    group, attempt = begun()
    group.streams[0].request.abandon()
    end(group, 1, State.CANCELLED, "client gone")
    assert group.job(attempt, "g", "tcp://d", 50.0).samples == (2,)


@pytest.mark.parametrize(
    ("ends", "outcome", "reason"),
    [
        (["stop", "stop", "stop"], "finished", "stop"),
        (["stop", "length", "stop"], "finished", "length"),
        (["stop", "client gone", "client gone"], "cancelled", "client gone"),
        (["client gone", "stop", "handoff"], "failed", "handoff"),
    ],
)
def test_the_record_has_the_gravest_end(ends: list[str], outcome: str, reason: str) -> None:
    group, _ = begun()
    for sample, one in enumerate(ends):
        say(group, sample, 1.0)
        finished = State.FINISHED if one in ("stop", "length") else State.FAILED
        end(group, sample, State.CANCELLED if one == "client gone" else finished, one)
    assert group.ended
    record = finished_record(group, "m", SLO(2000, 100), 2.0, 1000.0)
    assert (record.outcome, record.reason, record.good) == (outcome, reason, outcome == "finished")


def test_a_request_is_as_good_as_its_worst_sample() -> None:
    group, _ = begun(2)
    say(group, 0, 1.0)
    say(group, 1, 1.2)
    say(group, 0, 1.5, tokens=5, finish="stop")  # 100 ms each
    say(group, 1, 1.6, tokens=8, finish="stop")  # 50 ms each
    for stream, bytes_ in zip(group.streams, (4096, 4096), strict=True):
        stream.request.stages = Stages(queue_ms=1.0, prefill_ms=2.0, handoff_bytes=bytes_, cached_tokens=2)
        stream.request.end(State.FINISHED)
        stream.reason = "stop"

    def good(ttft: float, tpot: float) -> bool:
        return finished_record(group, "m", SLO(ttft, tpot), 2.0, 1000.0).good

    record = finished_record(group, "m", SLO(1, 1), 2.0, 1000.0)
    assert (record.ttft_ms, record.e2e_ms) == (1200.0, 1600.0)
    assert record.tpot_ms == pytest.approx(100.0)
    assert (record.prompt_tokens, record.output_tokens, record.samples, record.attempts) == (3, 15, 2, 1)
    assert (record.handoff_bytes, record.cached_tokens) == (4096, 2), "the prompt is computed and passed once"
    assert good(1200.1, 100.1) and not good(1199.9, 100.1) and not good(1200.1, 99.9)


def test_a_request_in_progress_is_where_its_least_advanced_sample_is() -> None:
    group, _ = begun()
    group.started(P, 1, 1.0)
    say(group, 0, 1.0, tokens=4)
    end(group, 0, State.FINISHED, "stop")
    say(group, 1, 1.0, tokens=2)
    record = request_record(group, 1.0)
    assert (record.state, record.output_tokens, record.prompt_tokens) == ("prefill", 6, 3)
