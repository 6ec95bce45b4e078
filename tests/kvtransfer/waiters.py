"""Handoffs that wait for KV room on a decode worker."""

from contracts.messages.handoff import Handoff, decode_to_decode, decode_to_prefill
from contracts.messages.job import PrefillJob, Prompt
from contracts.messages.packed_ids import packed
from contracts.messages.sampling import Limits, Sampling
from contracts.messages.wire import encode
from infra.config.transfer import TransferConfig
from kvtransfer.events import OpenHandoff
from kvtransfer.protocol.decode_links import DecodeLinks
from kvtransfer.protocol.instructions import Instruction, Send
from kvtransfer.protocol.prefill_link import PrefillLink
from tests.kvtransfer.world import DECODE, PREFILL, SPEC


class Waiters:
    """Handoffs that wait for KV room, both sides of the protocol in one process, on a clock of their own."""

    def __init__(self, handoffs: int, tokens: int) -> None:
        self.config = TransferConfig()
        self.senders = PrefillLink(self.config, PREFILL, DECODE, SPEC)
        self.receivers = DecodeLinks(self.config, DECODE, SPEC)
        self.messages = self.bytes = 0  # that went to the decode side
        for number in range(handoffs):
            now = number * self.config.repeat_ms / 1000 / handoffs
            self._pass(self.senders.open(_opened(number, tokens), now), now)

    def wait(self, seconds: float, now: float) -> None:
        until = now + seconds
        while (due := self.senders.next_deadline()) is not None and due < until:
            self._pass(self.senders.tick(due), due)

    def _pass(self, instructions: list[Instruction], now: float) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send) and isinstance(instruction.message, Handoff):
                data = encode(instruction.message)
                self.messages += 1
                self.bytes += len(data)
                for answer in self.receivers.receive(b"link", decode_to_decode(data), 0, now):  # type: ignore[arg-type]
                    if isinstance(answer, Send):
                        self._pass(self.senders.receive(decode_to_prefill(encode(answer.message)), now), now)


def _opened(number: int, tokens: int) -> OpenHandoff:
    job = PrefillJob(
        request=f"r{number}",
        attempt=1,
        sender="gateway",
        receiver=PREFILL,
        prompt=Prompt(list(range(tokens)), tokens),
        sampling=Sampling(1),
        limits=Limits(16),
        deadline=1e9,
        queued_at=0.0,
        decode_epoch=DECODE,
        decode_address="",
    )
    return OpenHandoff(number, job, packed(job.prompt.token_ids), (0,), 1e9, 1e9, ())
