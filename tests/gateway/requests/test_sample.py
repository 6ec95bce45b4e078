"""Delivery, attempts and ends of one sample, without sockets or clocks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import IllegalMove
from contracts.ids import AttemptKey, SampleKey, Ticket
from contracts.messages.gateway import (
    REASON_DRAINING,
    STATE_HANDED_OFF,
    STATE_HANDING_OFF,
    Alive,
    Emitted,
    Failed,
    Stages,
    Way,
)
from contracts.messages.job import Prompt
from contracts.messages.sampling import Finish, Limits, Sampling
from gateway.requests.attempt import Attempt
from gateway.requests.sample import (
    ASK_AFTER_S,
    GAP_AFTER_S,
    GIVE_UP_AFTER_S,
    MAX_PLANNED_PAUSE_S,
    MAX_PLANNED_RETRIES,
    MAX_RETRIES,
    QUEUE_CLOSED,
    READD_AFTER_S,
    AdmittedPrompt,
    Due,
    Fate,
    Sample,
    State,
    merged,
)
from pricing.routes.route import Route
from tests.scores import scores_of

P, D = "prefill", "decode"
BOTH = Route(P, D)


def state(sample: Sample) -> str:
    return sample.state.name


def begun(route: Route = BOTH) -> Sample:
    sample = Sample(SampleKey("r-1", 0), AdmittedPrompt(Prompt([5, 6, 7], 3), Sampling(1), Limits(100)), deadline=100.0)
    attempt = Attempt(1, route, 0.0)
    sample.begin(attempt, 0.0)
    attempt.add(0.0, Ticket(1, 0))
    return sample


def said(index: int, tokens: list[int], attempt: int = 1, finish: bool = False, **more: Any) -> Emitted:
    return Emitted(AttemptKey("r-1", 0, attempt), index, tokens, "stop" if finish else None, **more)


def new(emitted: Emitted | None) -> tuple[list[int], Finish | None]:
    assert emitted is not None
    return emitted.token_ids, emitted.finish


def refusal(reason: str, attempt: int = 1, retryable: bool = False) -> Failed:
    return Failed(sender=D, receiver="g", key=AttemptKey("r-1", 0, attempt), reason=reason, retryable=retryable)


@given(data=st.data(), length=st.integers(1, 12))
def test_every_token_once_and_in_order(data: st.DataObject, length: int) -> None:
    """Whatever is repeated, reordered or lost: what was delivered is right, and one full repetition completes it.

    Each token comes with its own scores, and the prompt's are kept from whichever first token was the first.
    """
    sample = begun()
    delivered: list[int] = []
    finish = None
    spans = st.tuples(st.integers(0, length - 1), st.integers(1, length)).filter(lambda span: span[0] < span[1])
    for start, end in [*data.draw(st.lists(spans, max_size=20)), (0, length)]:
        if finish is not None:
            break
        tokens = list(range(100 + start, 100 + end))
        prompt = scores_of([start, end]) if start == 0 else None
        came = said(start, tokens, finish=end == length, scores=scores_of(tokens), prompt_scores=prompt)
        before = sample.prompt_scores
        fresh = sample.emitted(data.draw(st.sampled_from([P, D])), came, 1.0)
        assert fresh is not None
        assert fresh.scores == (scores_of(fresh.token_ids) if fresh.token_ids else None)
        assert sample.prompt_scores == (before or prompt) and bool(sample.prompt_scores) == bool(sample.tokens)
        delivered += fresh.token_ids
        finish = fresh.finish
        assert delivered == list(range(100, 100 + len(delivered))) == sample.tokens
        assert (finish is not None) == (len(delivered) == length)
    assert finish == "stop"


def test_first_from_prefill_then_repeated_by_decode() -> None:
    sample = begun()
    assert new(sample.emitted(P, said(0, [10]), 1.0)) == ([10], None)
    assert state(sample) == "PREFILL"
    assert new(sample.emitted(D, said(0, [10]), 1.0)) == ([], None)
    assert state(sample) == "DECODE"
    assert new(sample.emitted(D, said(1, [11], finish=True), 1.0)) == ([11], "stop")


def test_an_end_can_come_without_tokens() -> None:
    sample = begun()
    sample.emitted(D, said(0, [10]), 1.0)
    assert new(sample.emitted(D, said(1, [], finish=True), 1.0)) == ([], "stop")


def test_a_gap_is_asked_for_soon() -> None:
    sample = begun()
    sample.started(P, 1, 1.0)
    assert new(sample.emitted(D, said(2, [12]), 1.0)) == ([], None)
    assert sample.due(1.0 + GAP_AFTER_S) is Due.ASK
    assert sample.due(1.0 + GAP_AFTER_S) is None
    assert new(sample.emitted(D, said(0, [10, 11]), 1.2)) == ([10, 11, 12], None)
    assert sample.due(1.3) is None


def test_other_attempts_and_strangers_are_not_heard() -> None:
    sample = begun()
    assert sample.emitted("stranger", said(0, [1]), 1.0) is None
    assert sample.emitted(D, said(0, [1], attempt=2), 1.0) is None
    assert not sample.started(P, 2, 1.0)
    assert sample.failed("stranger", refusal("broken"), 1.0) is Fate.NOTHING
    assert state(sample) == "QUEUED"


def test_the_next_attempt_goes_on_behind_the_delivered_tokens() -> None:
    sample = begun()
    sample.emitted(P, said(0, [10]), 1.0)
    sample.emitted(D, said(1, [11]), 1.0)
    assert sample.lost(D) and not sample.lost(P)
    old = sample.abandon()
    assert old is not None and old.number == 1
    sample.begin(Attempt(2, Route(P, "other"), 2.0), 2.0)
    assert sample.ids(0, sample.length) == [5, 6, 7, 10, 11]
    assert sample.emitted(D, said(2, [99]), 3.0) is None, "the old attempt is dead"
    assert new(sample.emitted(P, said(2, [12], attempt=2), 3.0)) == ([12], None)


def test_the_short_path() -> None:
    sample = begun(Route("", D))
    sample.started(D, 1, 1.0)
    assert state(sample) == "DECODE"


@pytest.mark.parametrize(
    ("reason", "retryable", "fate"),
    [("handoff", True, Fate.RETRY), ("capacity", False, Fate.FAIL), ("cancelled", False, Fate.RETRY)],
)
def test_failures(reason: str, retryable: bool, fate: Fate) -> None:
    sample = begun()
    sample.started(P, 1, 1.0)
    assert sample.failed(P, refusal(reason, retryable=retryable), 1.0) is fate
    assert sample.failed(P, refusal(reason, attempt=7, retryable=retryable), 1.0) is Fate.NOTHING


def test_a_prefill_worker_cannot_fail_what_the_decode_worker_owns() -> None:
    sample = begun()
    sample.emitted(D, said(0, [10]), 1.0)
    assert sample.failed(P, refusal("handoff", retryable=True), 1.0) is Fate.NOTHING
    assert sample.failed(D, refusal("unknown"), 1.0) is Fate.RETRY


def test_unknown_counts_when_nobody_knows_it_any_more() -> None:
    sample = begun()
    assert sample.failed(P, refusal("unknown"), 0.5) is Fate.NOTHING, "the job may still be on the stream"
    sample.started(P, 1, 1.0)
    assert sample.failed(D, refusal("unknown"), 1.0) is Fate.NOTHING, "the handoff may not have begun"
    sample.alive(P, Alive(sender=P, receiver="g", key=AttemptKey("r-1", 0, 1), state="prefill"), 1.5)
    assert sample.failed(P, refusal("unknown"), 2.0) is Fate.NOTHING
    assert sample.failed(D, refusal("unknown"), 2.0) is Fate.RETRY


@pytest.mark.parametrize("first", [P, D])
def test_a_sequence_that_was_handed_off_and_is_unknown_there_is_lost(first: str) -> None:
    sample = begun()
    sample.emitted(P, said(0, [10]), 1.0)
    passed_on = Alive(sender=P, receiver="g", key=AttemptKey("r-1", 0, 1), state=STATE_HANDED_OFF)

    def ask(worker: str) -> Fate | None:
        return sample.alive(P, passed_on, 3.0) if worker == P else sample.failed(D, refusal("unknown"), 3.0)

    assert ask(first) is Fate.NOTHING
    assert ask(D if first == P else P) is Fate.RETRY


def test_a_sequence_that_is_being_handed_off_is_not_lost_where_it_has_not_arrived() -> None:
    """A decode worker under load reads the Open late; who has the sequence knows."""
    sample = begun()
    sample.emitted(P, said(0, [10]), 1.0)
    for moment in (3.0, 5.0, 50.0):
        assert sample.failed(D, refusal("unknown"), moment) is Fate.NOTHING
        passing = Alive(sender=P, receiver="g", key=AttemptKey("r-1", 0, 1), state=STATE_HANDING_OFF)
        assert sample.alive(P, passing, moment) is Fate.NOTHING
        assert sample.due(moment + 1.0) is None


def test_a_handoff_that_passed_between_two_questions_is_not_lost() -> None:
    sample = begun()
    sample.emitted(P, said(0, [10]), 1.0)
    assert sample.due(1.0 + ASK_AFTER_S) is Due.ASK
    assert sample.failed(D, refusal("unknown"), 1.1 + ASK_AFTER_S) is Fate.NOTHING, "it has still to arrive"
    assert sample.due(1.0 + 2 * ASK_AFTER_S) is Due.ASK
    passed_on = Alive(sender=P, receiver="g", key=AttemptKey("r-1", 0, 1), state=STATE_HANDED_OFF)
    assert sample.alive(P, passed_on, 1.1 + 2 * ASK_AFTER_S) is Fate.NOTHING, "the decode worker has not answered yet"


def test_an_attempt_forgets_who_did_not_know_the_one_before() -> None:
    sample = begun()
    sample.started(P, 1, 1.0)
    assert sample.failed(D, refusal("unknown"), 1.0) is Fate.NOTHING
    sample.abandon()
    sample.begin(Attempt(2, BOTH, 2.0), 2.0)
    passed_on = Alive(sender=P, receiver="g", key=AttemptKey("r-1", 0, 2), state=STATE_HANDED_OFF)
    assert sample.alive(P, passed_on, 2.5) is Fate.NOTHING


def test_what_time_asks_for() -> None:
    sample = begun()
    assert sample.due(READD_AFTER_S - 0.01) is None
    assert sample.due(READD_AFTER_S) is Due.ADD
    assert sample.attempt is not None
    sample.attempt.add(READD_AFTER_S, Ticket(2, 0))
    assert sample.due(2 * READD_AFTER_S) is None, "the second wait is longer"
    assert sample.due(3 * READD_AFTER_S) is Due.ADD
    sample.started(P, 1, 4.0)
    assert sample.due(4.0 + ASK_AFTER_S) is Due.ASK
    assert sample.due(4.0 + ASK_AFTER_S) is None
    assert sample.due(4.0 + GIVE_UP_AFTER_S) is Due.RETRY
    assert sample.due(100.0) is Due.DEADLINE


def test_a_job_in_line_has_not_failed_however_long_it_waits() -> None:
    sample = begun()
    attempt = sample.attempt
    assert attempt is not None
    for now in (READD_AFTER_S, GIVE_UP_AFTER_S, 5 * GIVE_UP_AFTER_S):
        assert attempt.waits(Ticket(0, 9)) and sample.due(now, in_line=True) is None
    assert not attempt.waits(Ticket(1, 0)), "its worker has taken it, and its Started is lost"
    assert sample.due(5 * GIVE_UP_AFTER_S + 0.1) is Due.ADD
    attempt.add(5 * GIVE_UP_AFTER_S + 0.1, Ticket(2, 0))
    assert attempt.waits(Ticket(1, 7)), "it stands at the end of the line again"
    assert sample.due(100.0, in_line=True) is Due.DEADLINE, "the request's own time is the only clock"


def test_a_job_that_goes_again_and_again_without_a_word_has_failed() -> None:
    sample = begun()
    assert sample.attempt is not None
    for adds in range(1, 4):
        assert sample.due(READD_AFTER_S * (2**adds - 1)) is Due.ADD
        sample.attempt.add(READD_AFTER_S * (2**adds - 1), Ticket(adds, 0))
    assert sample.due(GIVE_UP_AFTER_S) is Due.RETRY


def test_a_sample_without_a_route_waits_for_its_deadline_only() -> None:
    sample = begun()
    sample.abandon()
    assert sample.due(99.0) is None
    assert sample.due(100.0) is Due.DEADLINE


def test_retries_are_bounded() -> None:
    sample = begun()
    assert [sample.may_retry() for _ in range(MAX_RETRIES + 1)] == [True] * MAX_RETRIES + [False]


def test_what_somebody_planned_costs_no_retry_up_to_a_bound() -> None:
    sample = begun()
    pauses = [sample.moves_on(REASON_DRAINING) for _ in range(MAX_PLANNED_RETRIES)]
    assert pauses[:4] == [0.0, 0.05, 0.1, 0.2] and pauses[-1] == MAX_PLANNED_PAUSE_S
    assert sample.retries == 0
    assert sample.moves_on(QUEUE_CLOSED) is None, "a loop is a failure"


def test_a_failure_is_not_planned() -> None:
    sample = begun()
    assert [sample.moves_on(reason) for reason in ("engine", "handoff", "worker died", "silence")] == [None] * 4
    assert sample.planned == 0


@pytest.mark.parametrize("first", [State.FINISHED, State.FAILED, State.CANCELLED])
@pytest.mark.parametrize("second", [State.FINISHED, State.FAILED, State.CANCELLED])
def test_one_end(first: State, second: State) -> None:
    sample = begun()
    sample.end(first, "stop")
    assert sample.ended
    with pytest.raises(IllegalMove):
        sample.end(second, "stop")
    with pytest.raises(IllegalMove):
        sample.begin(Attempt(2, BOTH, 1.0), 1.0)


def test_stages_of_both_workers_are_kept() -> None:
    sample = begun()
    sample.emitted(
        P, Emitted(AttemptKey("r-1", 0, 1), 0, [1], None, Stages(queue_ms=1, prefill_ms=2, cached_tokens=3)), 1.0
    )
    way = Way("ipc", codec="int8")
    sample.emitted(D, Emitted(AttemptKey("r-1", 0, 1), 1, [2], None, Stages(0, 0, 4, 5, 0, 6, 7, 8, 9, way)), 1.0)
    assert sample.stages == Stages(1, 2, 4, 5, 3, 6, 7, 8, 9, way)
    assert merged(Stages(way=Way("tcp")), sample.stages).way == way, "the last way that is known"
    assert merged(sample.stages, Stages()).way == way
