"""The decode side of a handoff, driven by hand into each of its states."""

from msgspec.structs import replace

from contracts.messages.handoff import Abort, Branch, Commit, Layer
from kvtransfer.digest import payload_digest
from kvtransfer.events import BlocksGranted, BlocksRefused, HandoffOver
from kvtransfer.protocol.decode_events import WriterCame, WriterGone
from kvtransfer.protocol.decode_handoff import DecodeHandoffState
from kvtransfer.protocol.decode_links import DecodeLinks
from kvtransfer.protocol.instructions import Instruction, Land, Send
from tests.kvtransfer.world import CONFIG, DECODE, KEY, SPEC, commit, layer, opening, to_decode

S = DecodeHandoffState
LINK = b"link"
QUICK = replace(CONFIG, verify_deadline=1.0)
GRANTED = BlocksGranted(KEY, ([4, 5, 6],), (0,))
ALL = (layer(0, 0, 0, 2), layer(1, 0, 2, 1, offset=16), layer(2, 1, 0, 2, offset=24), layer(3, 1, 2, 1, offset=40))
DIGEST = sum(
    payload_digest(0, place, first, [bytes(8 * count)]) for place in (0, 1) for first, count in ((0, 2), (2, 1))
)
DIGEST %= 2**64
COMMIT = commit(4, 48, DIGEST)
ABORT = to_decode(Abort, reason="cancelled")
ONE = Branch(0, [7])


class Side:
    """Drives handoff number 1 of prefill-1 by hand; payloads are zeros and land at once, or when the test says."""

    def __init__(self) -> None:
        self.receivers = DecodeLinks(QUICK, DECODE, SPEC)

    def do(self, event: object, now: float = 0.0) -> list[Instruction]:
        if isinstance(event, BlocksGranted | BlocksRefused | HandoffOver):
            return self.receivers.handle(event, now)
        if isinstance(event, WriterCame | WriterGone):
            tell = self.receivers.writer_came if isinstance(event, WriterCame) else self.receivers.writer_gone
            return tell(LINK, now)
        if isinstance(event, Layer):
            return self.receivers.receive(LINK, event, event.size, now)
        return self.receivers.receive(LINK, event, 0, now)  # type: ignore[arg-type]

    def land(self, moves: list[Instruction]) -> list[Instruction]:
        (move,) = moves
        assert isinstance(move, Land)
        header = move.header
        digest = payload_digest(header.group, header.layer, header.first, [bytes(header.size)])
        return self.receivers.landed(move, digest, 0.0)

    @property
    def state(self) -> DecodeHandoffState:
        receiver = self.receivers.handoffs.get(KEY)
        return S.NONE if receiver is None else receiver.state


def with_branches(*branches: Branch) -> Commit:
    return replace(COMMIT, branches=list(branches))


def none() -> Side:
    return Side()


def waiting() -> Side:
    side = Side()
    side.do(opening())
    return side


def granted() -> Side:
    side = waiting()
    side.do(GRANTED)
    return side


def written() -> Side:
    """Returns a handoff that is GRANTED, and whose sender may write into its blocks."""
    side = granted()
    side.do(WriterCame())
    return side


def quarantined() -> Side:
    side = written()
    side.do(HandoffOver(KEY, "cancelled"))
    return side


def landed() -> Side:
    """Returns a handoff that is GRANTED, with every payload in place."""
    side = granted()
    for header in ALL:
        side.land(side.do(header))
    return side


def verifying() -> Side:
    """Returns a handoff that is VERIFYING, as the last payload is missing."""
    side = granted()
    for header in ALL[:-1]:
        side.land(side.do(header))
    side.do(COMMIT)
    return side


def owned() -> Side:
    side = landed()
    side.do(COMMIT)
    return side


def ended() -> Side:
    side = granted()
    side.do(ABORT)
    return side


def ended_once_owned() -> Side:
    side = owned()
    side.do(HandoffOver(KEY, "finished"))
    return side


def kinds(moves: list[Instruction]) -> list[type]:
    return [type(move.message) if isinstance(move, Send) else type(move) for move in moves]
