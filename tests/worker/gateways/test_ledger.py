"""The ledger delivers each token and each end until it is acknowledged, and nothing to the dead."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contracts.ids import AttemptKey
from contracts.messages.gateway import Emitted, Stages
from contracts.messages.sampling import Finish
from contracts.scores import TokenScore
from tests.scores import scores_of
from worker.events import AttemptFailure
from worker.gateways.ledger import TOMBSTONE_TTL_S, AttemptArrival, Ledger

KEY = AttemptKey("gateway-1", 0, 1)


def key(attempt: int) -> AttemptKey:
    return KEY._replace(attempt=attempt)


def begun(attempt: int = 1, base: int = 0) -> Ledger:
    ledger = Ledger()
    assert ledger.begin(key(attempt), "gateway", base, 100.0) == (AttemptArrival.NEW, None)
    return ledger


def test_a_duplicate_job_is_seen_and_a_lower_attempt_is_dead() -> None:
    ledger = begun(attempt=2)
    assert ledger.begin(key(2), "gateway", 0, 100.0) == (AttemptArrival.DUPLICATE, None)
    assert ledger.begin(KEY, "gateway", 0, 100.0) == (AttemptArrival.DEAD, None)


def test_a_higher_attempt_kills_the_lower_one() -> None:
    ledger = begun(attempt=1)
    assert ledger.begin(key(2), "gateway", 0, 100.0) == (AttemptArrival.NEW, KEY)
    assert ledger.emit(Emitted(KEY, 0, [7])) is None


def test_a_vector_comes_with_the_end_and_comes_again_when_asked() -> None:
    ledger = begun()
    vector = bytes(64 << 10)
    assert ledger.emit(Emitted(KEY, 0, [], "stop", vector=vector)) == "gateway"
    for _ in range(2):
        (found,) = ledger.owed("gateway", 256)
        assert (found.token_ids, found.finish, found.vector) == ([], "stop", vector)
        ledger.sent([found])
        assert ledger.owed("gateway", 256) == []
        assert ledger.ask(KEY, 0) is not None
    other = KEY._replace(request="gateway-2")
    ledger.begin(other, "gateway", 0, 100.0)
    ledger.emit(Emitted(other, 0, [], "stop", vector=vector))
    assert len(ledger.owed("gateway", 256)) == 1, "two such vectors are a message each"


def test_a_cancelled_sequence_never_comes_back_until_its_tombstone_falls() -> None:
    ledger = begun()
    assert ledger.cancel(KEY, now=0.0)
    assert not ledger.cancel(KEY, now=0.0)
    assert ledger.begin(KEY, "gateway", 0, 100.0) == (AttemptArrival.DEAD, None)
    assert ledger.emit(Emitted(KEY, 0, [7])) is None
    ledger.expire(TOMBSTONE_TTL_S + 1)
    assert ledger.begin(KEY, "gateway", 0, 100.0)[0] is AttemptArrival.NEW


def test_a_cancel_that_comes_first_stops_the_job() -> None:
    ledger = Ledger()
    assert not ledger.cancel(key(3), now=0.0)
    assert ledger.begin(key(3), "gateway", 0, 100.0)[0] is AttemptArrival.DEAD
    assert ledger.begin(key(4), "gateway", 0, 100.0)[0] is AttemptArrival.NEW


def test_a_late_cancel_of_a_lower_attempt_revives_no_higher_one() -> None:
    ledger = Ledger()
    ledger.cancel(key(3), now=0.0)
    ledger.cancel(KEY, now=1.0)
    assert ledger.begin(key(3), "gateway", 0, 100.0)[0] is AttemptArrival.DEAD


def test_tokens_that_are_told_again_are_kept_once() -> None:
    ledger = begun(base=5)
    ledger.emit(Emitted(KEY, 5, [1, 2]))
    ledger.emit(Emitted(KEY, 6, [2, 3]))
    assert ledger.owed("gateway", 10) == [Emitted(KEY, 5, [1, 2, 3])]


def test_a_gateway_that_asks_is_told_the_stages_again() -> None:
    ledger, stages = begun(), Stages(queue_ms=1)
    ledger.emit(Emitted(KEY, 0, [1], None, stages))
    ledger.sent(ledger.owed("gateway", 10))
    ledger.emit(Emitted(KEY, 1, [2]))
    assert ledger.owed("gateway", 10) == [Emitted(KEY, 1, [2])]
    ledger.ask(KEY, 0)
    assert ledger.owed("gateway", 10) == [Emitted(KEY, 0, [1, 2], None, stages)]


def test_the_end_rides_with_the_last_token_and_is_repeated_on_asking() -> None:
    ledger = begun(base=5)
    ledger.emit(Emitted(KEY, 5, [1, 2]))
    ledger.sent(ledger.owed("gateway", 10))
    ledger.emit(Emitted(KEY, 7, [3], "stop"))
    assert ledger.owed("gateway", 10) == [Emitted(KEY, 7, [3], "stop")]
    ledger.sent(ledger.owed("gateway", 10))
    assert not ledger.owed("gateway", 10)
    asked = ledger.ask(KEY, 6)
    assert ledger.owed("gateway", 10) == [Emitted(KEY, 6, [2, 3], "stop")]
    assert ledger.acknowledged(KEY) is asked
    assert ledger.ask(KEY, 6) is None


def test_a_failure_is_owed_after_the_tokens() -> None:
    ledger = begun()
    ledger.emit(Emitted(KEY, 0, [1]))
    assert ledger.fail(KEY, AttemptFailure("engine")) == "gateway"
    assert ledger.fail(KEY, AttemptFailure("deadline")) is None
    (emitted,) = ledger.owed("gateway", 10)
    assert emitted.token_ids == [1] and ledger.failed("gateway") == (KEY, AttemptFailure("engine"))
    ledger.sent([emitted])
    assert not ledger.owed("gateway", 10) and list(ledger.gateways()) == ["gateway"]
    ledger.failure_sent(KEY)
    assert ledger.failed("gateway") is None and not list(ledger.gateways())


def test_a_message_holds_so_many_tokens_and_those_first_that_wait_longest() -> None:
    ledger = begun()
    second = KEY._replace(sample=1)
    ledger.begin(second, "gateway", 0, 100.0)
    ledger.emit(Emitted(KEY, 0, [1, 2, 3], "stop"))
    ledger.emit(Emitted(second, 0, [7, 8]))
    expected = [
        [Emitted(KEY, 0, [1, 2])],
        [Emitted(KEY, 2, [3], "stop"), Emitted(second, 0, [7])],
        [Emitted(second, 1, [8])],
    ]
    for message in expected:
        assert ledger.owed("gateway", 2) == message
        ledger.sent(message)
    assert not list(ledger.gateways())


def test_what_nobody_acknowledges_is_dropped_after_its_deadline() -> None:
    ledger = begun()
    ledger.expire(129.0)
    assert len(ledger) == 1
    ledger.expire(131.0)
    assert len(ledger) == 0


def test_a_message_has_the_scores_of_one_prompt_at_most() -> None:
    ledger = begun()
    second = KEY._replace(sample=1)
    ledger.begin(second, "gateway", 0, 100.0)
    for key in (KEY, second):
        ledger.emit(Emitted(key, 0, [1], prompt_scores=scores_of([2, 3])))
    for key in (KEY, second):
        (emitted,) = ledger.owed("gateway", 10)
        assert emitted.key == key and emitted.prompt_scores == scores_of([2, 3])
        ledger.sent([emitted])


class Delivery(RuleBasedStateMachine):
    """Checks that a gateway which loses messages and asks again gets every token once, in order, and the end."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = begun()
        self.made: list[int] = []
        self.got: list[int] = []
        self.finished = False
        self.seen_end = False
        self.scores: list[TokenScore] = []
        self.prompt_scores = 0

    @precondition(lambda self: not self.finished)
    @rule(count=st.integers(1, 3), end=st.booleans())
    def emit(self, count: int, end: bool) -> None:
        tokens = list(range(len(self.made), len(self.made) + count))
        prompt = scores_of([5, 6]) if not self.made else None
        finish: Finish | None = "stop" if end else None
        self.ledger.emit(Emitted(KEY, len(self.made), tokens, finish, None, scores_of(tokens), prompt))
        self.made += tokens
        self.finished = end

    @rule(lost=st.booleans(), most=st.integers(1, 4))
    def flush(self, lost: bool, most: int) -> None:
        while emitted := self.ledger.owed("gateway", most):
            (pending,) = emitted
            self.ledger.sent(emitted)
            if lost or pending.index > len(self.got):
                continue  # a gap: the gateway will ask
            self.got[pending.index :] = pending.token_ids
            assert pending.scores is not None
            self.scores[pending.index :] = pending.scores
            assert (pending.prompt_scores == scores_of([5, 6])) == (pending.index == 0 and bool(pending.token_ids))
            self.prompt_scores += pending.prompt_scores is not None
            self.seen_end = self.seen_end or pending.finish is not None

    @rule()
    def ask(self) -> None:
        entry = self.ledger.ask(KEY, len(self.got))
        assert entry is not None

    @invariant()
    def in_order(self) -> None:
        assert self.got == self.made[: len(self.got)]
        assert self.scores == list(scores_of(self.got))
        assert bool(self.prompt_scores) == bool(self.got)

    def teardown(self) -> None:
        self.ask()
        self.flush(lost=False, most=2)
        assert self.got == self.made and self.seen_end == self.finished


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=200, stateful_step_count=30)
