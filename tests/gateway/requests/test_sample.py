"""Delivery, attempts and ends of one request, without sockets or clocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import IllegalMove
from core.ids import SequenceKey
from core.messages import HANDED_OFF, Alive, DecodeJob, Emitted, Failed, Limits, PrefillJob, Sampling, Stages, Way
from gateway.requests.sample import (
    ASK_AFTER,
    GAP_AFTER,
    GIVE_UP_AFTER,
    READD_AFTER,
    RETRIES,
    Attempt,
    Due,
    Fate,
    Fresh,
    Request,
    Route,
    State,
    merged,
)

P, D = "prefill", "decode"


BOTH = Route(P, D)


def state(request: Request) -> str:
    return request.state.name


def begun(route: Route = BOTH) -> Request:
    request = Request(SequenceKey("r-1", 0), [5, 6, 7], Sampling(1), Limits(100), deadline=100.0)
    attempt = Attempt(1, route, 0.0)
    request.begin(attempt, 0.0)
    attempt.add(0.0)
    return request


def said(index: int, tokens: list[int], attempt: int = 1, finish: bool = False) -> Emitted:
    return Emitted("r-1", 0, attempt, index, tokens, "stop" if finish else None)


def refusal(reason: str, attempt: int = 1, retryable: bool = False) -> Failed:
    return Failed(sender=D, receiver="g", request="r-1", sample=0, attempt=attempt, reason=reason, retryable=retryable)


@given(data=st.data(), length=st.integers(1, 12))
def test_every_token_once_and_in_order(data: st.DataObject, length: int) -> None:
    """Whatever is repeated, reordered or lost: what was delivered is right, and one full repetition completes it."""
    request = begun()
    delivered: list[int] = []
    finish = None
    spans = st.tuples(st.integers(0, length - 1), st.integers(1, length)).filter(lambda span: span[0] < span[1])
    for start, end in [*data.draw(st.lists(spans, max_size=20)), (0, length)]:
        if finish is not None:
            break
        tokens = list(range(100 + start, 100 + end))
        fresh = request.emitted(data.draw(st.sampled_from([P, D])), said(start, tokens, finish=end == length), 1.0)
        assert fresh is not None
        delivered += fresh.tokens
        finish = fresh.finish
        assert delivered == list(range(100, 100 + len(delivered))) == request.tokens
        assert (finish is not None) == (len(delivered) == length)
    assert finish == "stop"


def test_first_from_prefill_then_repeated_by_decode() -> None:
    request = begun()
    assert request.emitted(P, said(0, [10]), 1.0) == Fresh([10], None)
    assert state(request) == "PREFILL"
    assert request.emitted(D, said(0, [10]), 1.0) == Fresh([], None)
    assert state(request) == "DECODE"
    assert request.emitted(D, said(1, [11], finish=True), 1.0) == Fresh([11], "stop")


def test_the_decode_worker_may_be_first() -> None:
    request = begun()
    assert request.emitted(D, said(0, [10, 11]), 1.0) == Fresh([10, 11], None)
    assert request.emitted(P, said(0, [10]), 1.0) == Fresh([], None)
    assert state(request) == "DECODE"


def test_an_end_can_come_without_tokens() -> None:
    request = begun()
    request.emitted(D, said(0, [10]), 1.0)
    assert request.emitted(D, said(1, [], finish=True), 1.0) == Fresh([], "stop")


def test_a_gap_is_asked_for_soon() -> None:
    request = begun()
    request.started(P, 1, 1.0)
    assert request.emitted(D, said(2, [12]), 1.0) == Fresh([], None)
    assert request.due(1.0 + GAP_AFTER) is Due.ASK
    assert request.due(1.0 + GAP_AFTER) is None
    assert request.emitted(D, said(0, [10, 11]), 1.2) == Fresh([10, 11, 12], None)
    assert request.due(1.3) is None


def test_other_attempts_and_strangers_are_not_heard() -> None:
    request = begun()
    assert request.emitted("stranger", said(0, [1]), 1.0) is None
    assert request.emitted(D, said(0, [1], attempt=2), 1.0) is None
    assert not request.started(P, 2, 1.0)
    assert request.failed("stranger", refusal("broken"), 1.0) is Fate.NOTHING
    assert state(request) == "QUEUED"


def test_the_next_attempt_goes_on_behind_the_delivered_tokens() -> None:
    request = begun()
    request.emitted(P, said(0, [10]), 1.0)
    request.emitted(D, said(1, [11]), 1.0)
    assert request.lost(D) and not request.lost(P)
    old = request.abandon()
    assert old is not None and old.number == 1
    request.begin(Attempt(2, Route(P, "other"), 2.0), 2.0)
    job = request.job((0,), "g", "tcp://other", 50.0, 1.0)
    assert isinstance(job, PrefillJob)
    assert (job.attempt, job.token_ids, job.prompt_tokens) == (2, [5, 6, 7, 10, 11], 3)
    assert (job.decode_epoch, job.decode_address, job.receiver) == ("other", "tcp://other", P)
    assert request.emitted(D, said(2, [99]), 3.0) is None, "the old attempt is dead"
    assert request.emitted(P, said(2, [12], attempt=2), 3.0) == Fresh([12], None)


def test_the_short_path() -> None:
    request = begun(Route("", D))
    job = request.job((0,), "g", "", 50.0, 1.0)
    assert isinstance(job, DecodeJob) and job.receiver == D
    request.started(D, 1, 1.0)
    assert state(request) == "DECODE"


@pytest.mark.parametrize(
    ("reason", "retryable", "fate"),
    [("handoff", True, Fate.RETRY), ("capacity", False, Fate.FAIL), ("cancelled", False, Fate.RETRY)],
)
def test_failures(reason: str, retryable: bool, fate: Fate) -> None:
    request = begun()
    request.started(P, 1, 1.0)
    assert request.failed(P, refusal(reason, retryable=retryable), 1.0) is fate
    assert request.failed(P, refusal(reason, attempt=7, retryable=retryable), 1.0) is Fate.NOTHING


def test_a_prefill_worker_cannot_fail_what_the_decode_worker_owns() -> None:
    request = begun()
    request.emitted(D, said(0, [10]), 1.0)
    assert request.failed(P, refusal("handoff", retryable=True), 1.0) is Fate.NOTHING
    assert request.failed(D, refusal("unknown"), 1.0) is Fate.RETRY


def test_unknown_counts_when_nobody_knows_it_any_more() -> None:
    request = begun()
    assert request.failed(P, refusal("unknown"), 0.5) is Fate.NOTHING, "the job may still be on the stream"
    request.started(P, 1, 1.0)
    assert request.failed(D, refusal("unknown"), 1.0) is Fate.NOTHING, "the handoff may not have begun"
    request.alive(P, Alive(sender=P, receiver="g", request="r-1", sample=0, attempt=1, state="prefill"), 1.5)
    assert request.failed(P, refusal("unknown"), 2.0) is Fate.NOTHING
    assert request.failed(D, refusal("unknown"), 2.0) is Fate.RETRY


@pytest.mark.parametrize("first", [P, D])
def test_a_sequence_that_was_handed_off_and_is_unknown_there_is_lost(first: str) -> None:
    request = begun()
    request.emitted(P, said(0, [10]), 1.0)
    passed_on = Alive(sender=P, receiver="g", request="r-1", sample=0, attempt=1, state=HANDED_OFF)

    def ask(worker: str) -> Fate | None:
        return request.alive(P, passed_on, 3.0) if worker == P else request.failed(D, refusal("unknown"), 3.0)

    assert ask(first) is Fate.NOTHING
    assert ask(D if first == P else P) is Fate.RETRY


def test_an_attempt_forgets_who_did_not_know_the_one_before() -> None:
    request = begun()
    request.started(P, 1, 1.0)
    assert request.failed(D, refusal("unknown"), 1.0) is Fate.NOTHING
    request.abandon()
    request.begin(Attempt(2, BOTH, 2.0), 2.0)
    passed_on = Alive(sender=P, receiver="g", request="r-1", sample=0, attempt=2, state=HANDED_OFF)
    assert request.alive(P, passed_on, 2.5) is Fate.NOTHING


def test_what_time_asks_for() -> None:
    request = begun()
    assert request.due(READD_AFTER - 0.01) is None
    assert request.due(READD_AFTER) is Due.ADD
    assert request.attempt is not None
    request.attempt.add(READD_AFTER)
    assert request.due(2 * READD_AFTER) is None, "the second wait is longer"
    assert request.due(3 * READD_AFTER) is Due.ADD
    request.started(P, 1, 4.0)
    assert request.due(4.0 + ASK_AFTER) is Due.ASK
    assert request.due(4.0 + ASK_AFTER) is None
    assert request.due(4.0 + GIVE_UP_AFTER) is Due.RETRY
    assert request.due(100.0) is Due.DEADLINE


def test_a_request_without_a_route_waits_for_its_deadline_only() -> None:
    request = begun()
    request.abandon()
    assert request.due(99.0) is None
    assert request.due(100.0) is Due.DEADLINE


def test_retries_are_bounded() -> None:
    request = begun()
    assert [request.may_retry() for _ in range(RETRIES + 1)] == [True] * RETRIES + [False]


@pytest.mark.parametrize("first", [State.FINISHED, State.FAILED, State.CANCELLED])
@pytest.mark.parametrize("second", [State.FINISHED, State.FAILED, State.CANCELLED])
def test_one_end(first: State, second: State) -> None:
    request = begun()
    request.end(first)
    assert request.ended
    with pytest.raises(IllegalMove):
        request.end(second)
    with pytest.raises(IllegalMove):
        request.begin(Attempt(2, BOTH, 1.0), 1.0)


def test_stages_of_both_workers_are_kept() -> None:
    request = begun()
    request.emitted(P, Emitted("r-1", 0, 1, 0, [1], None, Stages(queue_ms=1, prefill_ms=2, cached_tokens=3)), 1.0)
    way = Way("ipc", codec="int8")
    request.emitted(D, Emitted("r-1", 0, 1, 1, [2], None, Stages(0, 0, 4, 5, 0, 6, 7, 8, 9, way)), 1.0)
    assert request.stages == Stages(1, 2, 4, 5, 3, 6, 7, 8, 9, way)
    assert merged(Stages(way=Way("tcp")), request.stages).way == way, "the last way that is known"
    assert merged(request.stages, Stages()).way == way
