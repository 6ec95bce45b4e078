"""The prefill side of a handoff, driven by hand into each of its states."""

from contracts.messages.gateway import REASON_CROWDED
from contracts.messages.handoff import Abort, Commit, Layer, Refused, Waiting
from kvtransfer.digest import payload_digest
from kvtransfer.events import AbortHandoff, Closed, LayerReady
from kvtransfer.protocol.instructions import Instruction, Send
from kvtransfer.protocol.prefill_events import FrameDone
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.kvtransfer.world import CONFIG, DECODE, PREFILL, SPEC, TOKENS, grant, opened, to_prefill

ABORT = to_prefill(Abort, reason="bad_digest")
WAITING = to_prefill(Waiting)
CROWD = to_prefill(Refused, reason=REASON_CROWDED)


class Side:
    """Drives one handoff with number 1 by hand."""

    def __init__(self) -> None:
        self.senders = PrefillLink(CONFIG, PREFILL, DECODE, SPEC)
        self.opened = self.senders.open(opened(), 0.0)
        self.sender = self.senders.handoffs[1]

    def do(self, event: object, now: float = 0.0) -> list[Instruction]:
        if isinstance(event, LayerReady | AbortHandoff | FrameDone) or event is TOKENS:
            return self.senders.handle(event, now)
        return self.senders.receive(event, now)  # type: ignore[arg-type]

    def copy_all(self) -> list[int]:
        """Has a device begin to copy all payloads; returns their digests, which are not known yet."""
        digests = []
        while (turn := self.senders.next_payload()) is not None:
            digests.append(payload_digest(0, turn[1].layer, turn[1].first, [bytes(turn[1].size)]))
            assert self.senders.payload_taken(*turn, None, 0.0) == []
        return digests

    def send_all(self) -> tuple[list[Layer], list[Instruction]]:
        headers, moves = [], []
        while (turn := self.senders.next_payload()) is not None:
            headers.append(self.senders.header(*turn))
            digest = payload_digest(0, turn[1].layer, turn[1].first, [bytes(turn[1].size)])
            moves += self.senders.payload_taken(*turn, digest, 0.0)
        return headers, moves


def opening() -> Side:
    return Side()


def streaming() -> Side:
    side = Side()
    side.do(grant())
    return side


def flying() -> Side:
    side = streaming()
    side.do(LayerReady(1, 0, 0, 3))
    side.send_all()
    return side


def committed() -> Side:
    side = flying()
    side.do(LayerReady(1, 0, 1, 3))
    side.do(TOKENS)
    side.send_all()
    return side


def aborting() -> Side:
    side = Side()
    side.do(AbortHandoff(1, "cancelled"))
    return side


def closed() -> Side:
    """Returns a handoff that is CLOSED, but of which a frame may still be read."""
    side = flying()
    side.do(ABORT)
    return side


def sent(moves: list[Instruction]) -> list[type]:
    return [type(move.message) if isinstance(move, Send) else type(move) for move in moves]


def outcome(moves: list[Instruction]) -> tuple[str, str, bool]:
    (end,) = [move for move in moves if isinstance(move, Closed)]
    return end.outcome, end.reason, end.retryable


def ready(side: Side) -> Side:
    """Reports every layer as ready, in two steps, as a prompt of two chunks is computed."""
    for upto in (2, 3):
        for layer in (0, 1):
            side.do(LayerReady(1, 0, layer, upto))
    return side


def committed_in(moves: list[Instruction]) -> Commit:
    (message,) = [move.message for move in moves if isinstance(move, Send)]
    assert isinstance(message, Commit)
    return message
