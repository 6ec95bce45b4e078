"""GB/s of a handoff over TCP on this host, beside raw pyzmq with frames of the same size in the same run.

`python -m benchmarks.transfer` prints the best of a few rounds of each, taken in turn. Both sides share one process and
one Python thread here, so the figures are for comparison within one run only.
"""

import argparse
import asyncio
import os
import platform
import time

import numpy as np
import numpy.typing as npt
import zmq
import zmq.asyncio

from benchmarks.array_pool import ArrayPool
from core.config import TransferConfig
from core.gatekeeper import Gatekeeper
from core.kvspec import KVGroup, KVSpec
from core.link_keys import LinkKeys
from core.messages import Branch, Limits, Sampling, Stages
from core.sockets import payload_dealer, payload_router, send_now_tracked
from kvtransfer.inbound import Inbound
from kvtransfer.moves import InboundEvent, OpenRequest, OutboundEvent, Unpinned, Wanted
from kvtransfer.outbound import Outbound

LAYERS, BLOCK_TOKENS, BLOCK_BYTES = 16, 16, 64 << 10


async def handoff(context: zmq.asyncio.Context, keys: LinkKeys, megabytes: int, frame: int) -> float:
    """Seconds from Open to Unpinned for one handoff of `megabytes` MiB, the connection standing already."""
    blocks = megabytes * (1 << 20) // (LAYERS * BLOCK_BYTES)
    group = KVGroup("full", tuple(range(LAYERS)), BLOCK_TOKENS, BLOCK_BYTES)
    spec = KVSpec(groups=(group,), layout="benchmark", weights="none")
    config = TransferConfig(frame=frame)
    source, target = ArrayPool(spec, blocks + 2, seed=1), ArrayPool(spec, blocks + 2, seed=2)
    done: list[int] = []

    def on_inbound(event: InboundEvent) -> None:
        if isinstance(event, Wanted):
            count = -(-len(event.open.token_ids) // BLOCK_TOKENS)
            inbound.granted(event.key, (list(range(1, 1 + count)),), 0)

    def on_outbound(event: OutboundEvent) -> None:
        if isinstance(event, Unpinned):
            done.append(event.handoff)

    inbound = Inbound(config, "decode", spec, target, context, keys, "127.0.0.1", on_inbound)
    outbound = Outbound(config, "prefill", spec, source, context, keys, on_outbound)

    async def one(number: int, count: int) -> None:
        request = OpenRequest(
            request=str(number), samples=(0,), attempt=1, gateway="g", token_ids=[0] * (count * BLOCK_TOKENS),
            prompt_tokens=count * BLOCK_TOKENS, remaining_ms=60_000,
        )  # fmt: skip
        outbound.open(number, inbound.address, "decode", request, (list(range(1, 1 + count)),))
        for layer in range(LAYERS):
            outbound.layer_ready(number, 0, layer, count)
        outbound.commit(number, 0, [Branch(0, [1])], Sampling(seed=0), Limits(max_tokens=1), Stages())
        async with asyncio.timeout(60):
            while number not in done:
                await asyncio.sleep(0)

    await one(0, 1)
    begin = time.perf_counter()
    await one(1, blocks)
    seconds = time.perf_counter() - begin
    assert all(np.array_equal(source.arrays[at][1:-1], target.arrays[at][1:-1]) for at in source.arrays), "bytes differ"
    await outbound.close()
    await inbound.close()
    return seconds


async def raw(context: zmq.asyncio.Context, gatekeeper: Gatekeeper, megabytes: int, frame: int) -> float:
    """Seconds for the same bytes as bare frames, sent without copying and copied once out of the received frame."""
    gatekeeper.expect("raw", "token")
    receiver, address = payload_router(context, "127.0.0.1")
    sender = payload_dealer(context, address, os.urandom(16), "raw", "token")
    source: npt.NDArray[np.uint8] = np.ones(megabytes << 20, np.uint8)
    target: npt.NDArray[np.uint8] = np.zeros(megabytes << 20, np.uint8)

    async def receive(size: int) -> None:
        for at in range(0, size, frame):
            _, part = await receiver.recv_multipart(copy=False)
            target[at : at + len(part.buffer)] = np.frombuffer(part.buffer, np.uint8)

    async def send(size: int) -> None:
        for at in range(0, size, frame):
            while send_now_tracked(sender, [source[at : at + frame].data]) is None:
                await asyncio.sleep(0)
            await asyncio.sleep(0)

    await asyncio.gather(send(frame), receive(frame))
    begin = time.perf_counter()
    await asyncio.gather(send(len(source)), receive(len(source)))
    seconds = time.perf_counter() - begin
    sender.close(0)
    receiver.close(0)
    return seconds


async def measure(megabytes: int, frame: int, rounds: int) -> None:
    context, keys = zmq.asyncio.Context(), LinkKeys.of(os.urandom(32))
    gatekeeper = Gatekeeper(context, keys)
    times: dict[str, list[float]] = {"handoff": [], "raw pyzmq": []}
    try:
        for _ in range(rounds):
            times["handoff"].append(await handoff(context, keys, megabytes, frame))
            times["raw pyzmq"].append(await raw(context, gatekeeper, megabytes, frame))
    finally:
        await gatekeeper.close()
        context.destroy(0)
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, pyzmq {zmq.__version__}")
    for name, seconds in times.items():
        print(f"{name:10} {megabytes} MiB in {frame >> 10} KiB payloads: {megabytes / 953.67 / min(seconds):.2f} GB/s")


def main() -> None:
    """Entry of `python -m benchmarks.transfer`."""
    parser = argparse.ArgumentParser(prog="benchmarks.transfer", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64, help="MiB of one handoff")
    parser.add_argument("--frame", type=int, default=1 << 20, help="bytes of one payload")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    asyncio.run(measure(options.megabytes, options.frame, options.rounds))


if __name__ == "__main__":
    main()
