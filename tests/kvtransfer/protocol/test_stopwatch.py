"""Tests how long each stage of a handoff takes, by the moments of either side."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from contracts.messages.gateway import Stages, Way
from contracts.messages.handoff import Accepted, Commit, Credit, Refused
from kvtransfer.events import AbortHandoff, Closed, HandoffTimes, Landed, LayerReady
from kvtransfer.protocol.instructions import Instruction, Send
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.kvtransfer.protocol.decode_side import ALL, COMMIT, GRANTED
from tests.kvtransfer.protocol.decode_side import Side as DecodeSide
from tests.kvtransfer.world import CONFIG, DECODE, PREFILL, SPEC, TOKENS, grant, opened, opening, to_prefill

LAYER_BYTES = 24  # bytes: three blocks of 8


class Side:
    """Drives one handoff of two layers, opened at 1 s, whose payloads go over a ring."""

    def __init__(self) -> None:
        self.senders = PrefillLink(CONFIG, PREFILL, DECODE, SPEC)
        self.senders.transport = "shm"
        self.senders.open(opened(), 1.0)

    def does(self, event: LayerReady | AbortHandoff, now: float) -> list[Instruction]:
        return self.senders.handle(event, now)

    def hears(self, message: object, now: float) -> list[Instruction]:
        return self.senders.receive(message, now)  # type: ignore[arg-type]

    def seen(self, offset: int, now: float) -> list[Instruction]:
        return self.hears(Credit(sender=DECODE, receiver=PREFILL, seen=offset, limit=1024), now)

    def send(self, now: float) -> list[Instruction]:
        moves: list[Instruction] = []
        while (turn := self.senders.next_payload()) is not None:
            moves += self.senders.payload_taken(*turn, 0, now)
        return moves

    def end(self, now: float) -> HandoffTimes:
        """Accepts the handoff; returns its times."""
        return times(self.hears(to_prefill(Accepted), now))


def times(moves: list[Instruction]) -> HandoffTimes:
    (closed,) = [move for move in moves if isinstance(move, Closed)]
    return closed.times


def told(moves: list[Instruction]) -> Stages:
    """Returns the times that Commit says."""
    (commit,) = [move.message for move in moves if isinstance(move, Send) and isinstance(move.message, Commit)]
    return commit.stages


def measured(stages: Stages) -> tuple[float, float, float]:
    return stages.grant_ms, stages.send_ms, stages.exposed_ms


def test_a_layer_that_leaves_while_the_next_is_computed_exposes_nothing() -> None:
    side = Side()
    side.does(LayerReady(1, 0, 0, 3), 1.5)
    side.hears(grant(), 2.0)  # from now on it could leave
    side.send(2.25)
    side.seen(LAYER_BYTES, 2.5)  # half a second of sending, and nothing to send until the next layer
    side.does(LayerReady(1, 0, 1, 3), 7.0)
    side.send(7.0)
    side.seen(2 * LAYER_BYTES, 7.25)
    stages = told(side.senders.handle(TOKENS, 8.0))
    assert measured(stages) == (1000.0, 750.0, 0.0), "all had left when the computation ended"
    assert stages.prefill_ms == TOKENS.stages.prefill_ms and stages.way == Way("shm", False, "none")
    assert side.end(8.125) == HandoffTimes(1000.0, 750.0, 125.0)


def test_what_leaves_behind_the_computation_is_exposed() -> None:
    side = Side()
    side.hears(grant(), 1.25)
    for layer in (0, 1):
        side.does(LayerReady(1, 0, layer, 3), 2.0)
    assert side.senders.handle(TOKENS, 2.0) == []
    stages = told(side.send(2.5))
    assert measured(stages) == (250.0, 500.0, 500.0)
    side.seen(LAYER_BYTES, 2.75)  # a part only
    assert side.end(3.0) == HandoffTimes(250.0, 1000.0, 1000.0), "what Accepted covers was under way until then"


def test_a_late_grant_is_waited_for_by_all() -> None:
    side = Side()
    for layer in (0, 1):
        side.does(LayerReady(1, 0, layer, 3), 2.0)
    side.senders.handle(TOKENS, 2.0)
    side.hears(grant(), 5.0)
    assert measured(told(side.send(5.5))) == (4000.0, 500.0, 3500.0)


def test_the_computation_may_have_ended_before_it_was_told() -> None:
    side = Side()
    side.hears(grant(held=3), 1.5)
    late = replace(TOKENS, computed_at=1.75)
    assert measured(told(side.senders.handle(late, 2.0))) == (500.0, 0.0, 250.0)
    assert side.end(2.25) == HandoffTimes(500.0, 0.0, 500.0)


def test_a_prompt_that_the_peer_has_moves_no_way() -> None:
    side = Side()
    side.hears(grant(held=3), 1.5)
    stages = told(side.senders.handle(TOKENS, 2.0))
    assert measured(stages) == (500.0, 0.0, 0.0) and stages.way is None
    assert side.end(2.25) == HandoffTimes(500.0, 0.0, 250.0)


def refused(side: Side) -> list[Instruction]:
    side.hears(to_prefill(Refused, reason="full"), 2.0)
    return side.senders.lost("peer_silent", 3.0)


def cancelled(side: Side) -> list[Instruction]:
    side.hears(grant(), 1.5)
    side.does(AbortHandoff(1, "cancelled"), 2.0)
    return side.senders.lost("peer_silent", 3.0)


@pytest.mark.parametrize(("end", "grant_ms"), [(refused, 0.0), (cancelled, 500.0)])
def test_what_was_not_come_to_takes_no_time(end: Callable[[Side], list[Instruction]], grant_ms: float) -> None:
    assert times(end(Side())) == HandoffTimes(grant_ms, 0.0, 0.0)


@pytest.mark.parametrize(("commit_at", "land_ms"), [(3.0, 2000.0), (5.0, 0.0)])
def test_landing_is_from_the_commit_to_the_last_payload(commit_at: float, land_ms: float) -> None:
    side = DecodeSide()
    side.do(opening(), 1.0)
    side.do(GRANTED, 1.0)
    for header in ALL[:-1]:
        side.land(side.do(header, 2.0))
    (land,) = side.do(ALL[-1], 2.0)  # it lands at 5 s
    moves = side.do(COMMIT, commit_at) if commit_at < 5.0 else []
    digest = COMMIT.digest - side.receivers.handoffs[next(iter(side.receivers.handoffs))].digest.value
    moves += side.receivers.landed(land, digest % 2**64, 5.0)  # type: ignore[arg-type]
    moves += side.do(COMMIT, commit_at) if commit_at == 5.0 else []
    (landed,) = [move for move in moves if isinstance(move, Landed)]
    assert landed.land_ms == land_ms
