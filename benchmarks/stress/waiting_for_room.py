"""Measures what handoffs cost a prefill worker's I/O thread while they wait for room on a decode worker.

    python -m benchmarks.stress.waiting_for_room [--handoffs 1024] [--tokens 500]

Pure: both sides of the protocol in one process, on a clock of their own; every message passes as bytes. A line says how
many seconds of a processor both sides take in a second of waiting: far less than one, however many wait.
"""

import argparse
import sys
import time
from collections.abc import Iterator

from contracts.kv.spec import KVGroup, KVSpec
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

PREFILL, DECODE = "prefill", "decode"
SPEC = KVSpec(groups=(KVGroup("full", (0, 1), 16, 4096),), layout="test", weights="none")
SETTLE_S = 5.0  # s of waiting that are not measured
MEASURED_S = 5.0  # s of waiting that are


class Waiters:
    """Keeps so many handoffs that wait for room, and lets time pass for them."""

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


def rows(most: int, tokens: int) -> Iterator[str]:
    handoffs = max(1, most // 64)
    while handoffs <= most:
        waiters = Waiters(handoffs, tokens)
        waiters.wait(SETTLE_S, 0.0)
        messages, size, began = waiters.messages, waiters.bytes, time.process_time()
        waiters.wait(MEASURED_S, SETTLE_S)
        taken = 100 * (time.process_time() - began) / MEASURED_S
        rate, kilobytes = (waiters.messages - messages) / MEASURED_S, (waiters.bytes - size) / MEASURED_S / 1000
        yield f"{handoffs} wait: {taken:.1f}% of a processor, {rate:.0f} messages/s, {kilobytes:.1f} kB/s"
        handoffs *= 4


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.stress.waiting_for_room", description=__doc__)
    parser.add_argument("--handoffs", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=500, help="of each prompt")
    options = parser.parse_args()
    for line in rows(options.handoffs, options.tokens):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
