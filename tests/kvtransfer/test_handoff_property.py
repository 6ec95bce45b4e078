"""Runs both sides over a link that drops, delays, reorders and repeats: equal bytes and one Accepted, or nothing held.

The link has two stages. What the socket holds still refers to the sender's memory and leaves in order; what is on the
way is a copy, and there anything may happen to it. Blocks are scribbled over as soon as the rules call them free. In
half of the examples the sender writes into the receiver's pool itself, and never into a block that is another's.

Each example draws which troubles it may meet and the steps at which calamities come, so that some meet none and have to
succeed, and the rare ends are not left to luck. `--hypothesis-show-statistics` says what share of examples met what.
"""

from collections.abc import Sequence
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs
from msgspec.structs import replace

from contracts.ids import AttemptKey, SampleKey
from contracts.kv.spec import KVGroup, KVSpec
from contracts.messages.handoff import Branch
from infra.config.transfer import TransferConfig
from kvtransfer.events import AbortHandoff, Dropped
from kvtransfer.handoff import HandoffKey
from kvtransfer.protocol.prefill_handoff import PrefillHandoffState
from tests.kvtransfer.handoff_ends import BLOCKS_PER_GROUP, HANDOFF_COUNT, LAYERS, HandoffEnds
from tests.kvtransfer.world import SPEC, TOKENS

WINDOWED = KVSpec((structs.replace(SPEC.groups[0], layers=(1,), window=6), KVGroup("full", (0,), 4, 8)), "test", "none")
NUMBERS = st.integers(0, HANDOFF_COUNT - 1)
FATES = st.lists(st.sampled_from(["arrive"] * 9 + ["repeat", "repeat", "drop", "delay"]), min_size=1, max_size=10)
AHEAD = st.lists(st.booleans(), min_size=1, max_size=6)
TROUBLES = ((), ("cancel",), ("loss",), ("loss", "cancel"))
SILENCES = ["silence everywhere", "silence on the way there", "silence on the way back"]
CALAMITIES = ["payload lost"] * 3 + SILENCES + ["decode restarts"] * 2 + ["prefill restarts"] + ["room is short"] * 3
T = TypeVar("T")


class HandoffMachine(RuleBasedStateMachine):
    """Chooses what the engines do, what becomes of each packet, and which calamities come."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    @initialize(
        window=st.sampled_from([1, 20, 4096]),
        frame=st.sampled_from([1, 16, 64]),
        line=st.sampled_from([1, HANDOFF_COUNT]),
        streaming=st.booleans(),
        windowed=st.booleans(),
        writes=st.booleans(),
        cached=st.lists(st.integers(0, BLOCKS_PER_GROUP), min_size=HANDOFF_COUNT, max_size=HANDOFF_COUNT),
        samples=st.lists(st.integers(1, 3), min_size=HANDOFF_COUNT, max_size=HANDOFF_COUNT),
        troubles=st.sampled_from(TROUBLES),
        calamities=st.lists(st.tuples(st.sampled_from(CALAMITIES), st.integers(2, 25)), max_size=2),
    )
    def begin(
        self,
        window: int,
        frame: int,
        line: int,
        streaming: bool,
        windowed: bool,
        writes: bool,
        cached: list[int],
        samples: list[int],
        troubles: tuple[str, ...],
        calamities: list[tuple[str, int]],
    ) -> None:
        config = TransferConfig(window=window, frame=frame, grant_deadline=10.0, grants_waiting=line)
        spec = WINDOWED if windowed else SPEC
        self.ends = HandoffEnds(config, spec, cached, [tuple(range(count)) for count in samples], writes=writes)
        self.troubles = troubles
        self.calamities = calamities
        self.forget_harm()
        if streaming and cached[0] % 2:  # else some are granted first
            self.writer_comes()
        if streaming:  # most troubles are worth more when payloads are on the way
            self.send(0, ["arrive"] * HANDOFF_COUNT)
            self.deliver(HANDOFF_COUNT)
            while self.ends.wanted:
                self.grant()
            self.deliver_back(["arrive"] * HANDOFF_COUNT)
            for number in range(HANDOFF_COUNT):
                self.layer_ready(number, 0, BLOCKS_PER_GROUP)

    def forget_harm(self) -> None:
        """Begins anew with the prefill side's life."""
        self.dead: set[SampleKey] = set()  # branches that the receiver knows to be cancelled
        self.cancelled: set[int] = set()
        self.mishaps = 0  # what may end a handoff: messages lost or overtaken, calamities

    # what the engines do ------------------------------------------------------------------------------------------

    @rule(number=NUMBERS, layer=st.sampled_from(LAYERS), upto=st.sampled_from([1, 2, BLOCKS_PER_GROUP]))
    def layer_ready(self, number: int, layer: int, upto: int) -> None:
        sender = self.ends.senders.handoffs.get(number)
        if sender is None or (sender.state is not PrefillHandoffState.COMMITTED and sender._to_commit is None):
            self.ends.layer_ready(number, layer, upto)

    @rule(number=NUMBERS, ended=st.sets(st.integers(0, 2)))
    def finish(self, number: int, ended: set[int]) -> None:
        """Commits a handoff: the first token is there, and was the last of the samples in `ended`."""
        sender = self.ends.senders.handoffs.get(number)
        if sender is not None and sender._to_commit is None:
            for layer in LAYERS:
                self.ends.layer_ready(number, layer, BLOCKS_PER_GROUP)
            living = [sample for sample in self.ends.samples[number] if sample not in ended] or [0]
            self.ends.branches[number] = [Branch(sample, [7 + sample]) for sample in living]
            first = replace(TOKENS, handoff=number, branches=self.ends.branches[number])
            self.ends.tell_sender(first)

    @precondition(lambda self: "cancel" in self.troubles)
    @rule(number=NUMBERS, where=st.sampled_from(["nowhere"] * 6 + ["sender", "receiver"]))
    def cancel(self, number: int, where: str) -> None:
        if where == "nowhere":  # keeps cancels rare
            return
        if where == "sender":
            self.cancelled.add(number)
            self.ends.tell_sender(AbortHandoff(number, "cancelled"))
        else:
            for sample in self.ends.samples[number]:
                self.cancel_branch(number, sample)

    @precondition(lambda self: "cancel" in self.troubles)
    @rule(number=NUMBERS, sample=st.integers(0, 2))
    def cancel_branch(self, number: int, sample: int) -> None:
        """Cancels a sample; the handoff ends with the last of its samples only."""
        if sample not in self.ends.samples[number]:
            return
        self.dead.add(SampleKey(f"r{number}", sample))
        if all(SampleKey(f"r{number}", other) in self.dead for other in self.ends.samples[number]):
            self.cancelled.add(number)
        else:
            event("a branch of several was cancelled")
        moves = self.ends.receivers.cancel(AttemptKey(f"r{number}", sample, self.ends.attempt), self.ends.now)
        ended = [move.key for move in moves if isinstance(move, Dropped) and move.key.sender == self.ends.prefill]
        assert number in self.cancelled or not ended, "somebody still wants it"
        self.ends.receiver_does(moves)

    @precondition(lambda self: self.ends.wanted)
    @rule()
    def grant(self) -> None:
        self.ends.grant()

    # what the world does ------------------------------------------------------------------------------------------

    @rule(step=st.sampled_from([0.01, 0.1, 0.3]))
    def time_passes(self, step: float) -> None:
        self.ends.tick(step)

    @precondition(lambda self: self.ends.writes and not self.ends.memory_of)
    @rule()
    def writer_comes(self) -> None:
        self.ends.writer_comes()

    @rule()
    def writers_end_is_seen(self) -> None:
        self.ends.see_ended_writers()

    @rule(payloads=st.integers(0, 6), fates=FATES, ahead=AHEAD)
    def send(self, payloads: int, fates: Sequence[str], ahead: Sequence[bool] = (False,)) -> None:
        """Queues payloads whose turn it is at the channel; one packet per fate leaves that queue, or the socket's."""
        for _ in range(payloads):
            turn = None if self.ends.lost else self.ends.senders.next_payload()
            if turn is not None:
                self.ends.push_payload(*turn)
        copies = []
        for at in range(min(len(fates), len(self.ends.socket) + len(self.ends.channel))):
            overtakes = self.ends.channel and (ahead[at % len(ahead)] or not self.ends.socket)
            copies.append(self.ends.copy((self.ends.channel if overtakes else self.ends.socket).pop(0)))
        self.ends.out += self.befall(copies, fates)

    @rule(count=st.integers(1, 12))
    def deliver(self, count: int) -> None:
        arriving, self.ends.out = self.ends.out[:count], self.ends.out[count:]
        for packet in arriving:
            self.ends.arrive(packet)
        self.ends.receiver_does(list(self.ends.receivers.credits()))

    @rule(fates=FATES)
    def deliver_back(self, fates: Sequence[str]) -> None:
        arriving, self.ends.back = self.ends.back[: len(fates)], self.ends.back[len(fates) :]
        for data in self.befall(arriving, fates):
            self.ends.answer(data)

    @rule(payloads=st.integers(0, 6), there=FATES, back=FATES, ahead=AHEAD)
    def round_trip(self, payloads: int, there: Sequence[str], back: Sequence[str], ahead: Sequence[bool]) -> None:
        """Goes all of the way in one rule: Hypothesis leaves rules out of an example, and then nothing would move."""
        self.send(payloads, there, ahead)
        self.deliver(len(self.ends.out) or 1)
        while self.ends.wanted:
            self.grant()
        self.deliver_back(back)

    @invariant()
    def calamity(self) -> None:
        """Lets the calamities come whose step it is."""
        self.steps += 1
        due = [what for what, step in self.calamities if step <= self.steps]
        self.calamities = [(what, step) for what, step in self.calamities if step > self.steps]
        for what in due:
            match what:
                case "decode restarts":
                    self.decode_restarts()
                case "prefill restarts":
                    self.prefill_restarts()
                case "payload lost":
                    self.payload_lost()
                case "room is short":
                    self.room_is_short()
                case _:
                    self.silence(what)

    def payload_lost(self) -> None:
        """Loses the next payload that leaves; what is before and behind it arrives."""
        for number in range(HANDOFF_COUNT):
            self.layer_ready(number, 1, BLOCKS_PER_GROUP)
        if self.ends.lost or self.ends.senders.next_payload() is None:  # not granted yet, or the window is closed
            self.calamities.append(("payload lost", self.steps + 1))
            return
        self.mishaps += 1
        self.send(1, ["arrive"] * (len(self.ends.socket) + len(self.ends.channel) + 2))  # it may bring a Commit along
        if lost := [at for at, packet in enumerate(self.ends.out) if packet.frames]:
            del self.ends.out[lost[-1]]

    def room_is_short(self) -> None:
        """Lets those wait that have asked, while all that is said arrives. This is no mishap: they have to succeed."""
        for _ in range(5):
            self.time_passes(0.3)
            self.send(0, ["arrive"] * (len(self.ends.socket) + len(self.ends.channel)))
            self.deliver(len(self.ends.out))
            self.deliver_back(["arrive"] * len(self.ends.back))

    def silence(self, where: str) -> None:
        """Lets nothing arrive for six seconds in one direction, or in both."""
        self.mishaps += 1
        for _ in range(12):
            self.time_passes(0.5)
            self.send(1, ["arrive"] * (len(self.ends.socket) + len(self.ends.channel) + 1))
            if where != "silence on the way back":
                self.ends.out = []
            self.deliver(len(self.ends.out))
            if where != "silence on the way there":
                self.ends.back = []
            self.deliver_back(["arrive"] * len(self.ends.back))

    def decode_restarts(self) -> None:
        """Restarts the decode side at the same address: what the socket still holds will reach the new life."""
        event("the decode side restarted")
        self.mishaps += 1
        self.ends.new_decode_life()

    def prefill_restarts(self) -> None:
        """Restarts the prefill side; what is on the way to it, and from it, still arrives."""
        event("the prefill side restarted")
        self.ends.new_prefill_life()
        self.forget_harm()

    def befall(self, packets: list[T], fates: Sequence[str]) -> list[T]:
        """Decides what becomes of each packet on the way; the delayed come last."""
        arriving: list[T] = []
        late: list[T] = []
        for packet, drawn in zip(packets, fates, strict=False):
            fate = drawn if "loss" in self.troubles or drawn == "repeat" else "arrive"
            self.mishaps += fate in ("drop", "delay")  # repetitions do no harm
            arriving += [packet] * (0 if fate in ("drop", "delay") else 1)
            late += [packet] * (fate in ("repeat", "delay"))
        return arriving + late

    # the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "ends"):
            return
        self.troubles = ()
        calm_since = self.ends.now
        for number in range(HANDOFF_COUNT):
            self.finish(number, set())
        for _ in range(200):  # 20 s over a link that works
            self.writer_comes()
            self.writers_end_is_seen()
            self.time_passes(0.1)
            while self.ends.wanted:
                self.grant()
            self.ends.push_all()
            self.transmit_all()
            if not self.ends.senders.handoffs and not self.ends.waits():
                break
        assert not self.ends.senders.handoffs, "the sender still has a handoff"
        assert not self.ends.waits(), "the receiver still waits"
        assert set(self.ends.closed) == self.ends.unpinned == set(range(HANDOFF_COUNT))
        for number, end in self.ends.closed.items():
            landed = self.ends.landed.get(HandoffKey(self.ends.prefill, number))
            event(f"sender: {end.outcome} {end.reason}")
            harmed = self.mishaps or number in self.cancelled or calm_since - self.ends.begun > 4.0
            assert end.outcome == "accepted" or harmed, f"nothing went wrong, but {end}"
            if end.outcome == "accepted":
                assert landed is not None
                assert (end.digest, end.bytes, end.digests) == (landed.digest, landed.bytes, landed.digests)
            else:
                assert landed is None or self.ends.lost, f"landed, but the sender says {end}"
        owned = {key for key, landed in self.ends.landed.items() if landed.open.receiver == self.ends.decode}
        assert set(self.ends.target_blocks) == owned - set(self.ends.dropped), "blocks are held by nobody"

    def transmit_all(self) -> None:
        while self.ends.socket or self.ends.channel or self.ends.out or self.ends.back or self.ends.receivers._moved:
            self.send(0, ["arrive"] * (len(self.ends.socket) + len(self.ends.channel)))
            self.deliver(len(self.ends.out))
            self.deliver_back(["arrive"] * len(self.ends.back))
            self.ends.push_all()


HandoffMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target),
)
TestHandoff = HandoffMachine.TestCase
