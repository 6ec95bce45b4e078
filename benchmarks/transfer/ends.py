"""Runs the two ends of a measured transfer: `python -m benchmarks.transfer.ends` is the far one, in its own process.

It prints its address as one line of JSON, grants every handoff at once into the same blocks, and answers each line on
its standard input with the highest memory that it has had.
"""

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import zmq.asyncio

from contracts.errors import NativeError
from contracts.messages.gateway import Stages
from contracts.messages.handoff import Branch
from contracts.messages.job import PrefillJob, Prompt
from contracts.messages.packed_ids import packed
from contracts.messages.sampling import Limits, Sampling
from engine.backends.native.codec import NativeCodec
from engine.backends.native.library import load
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.kv.codec import BlockCodec
from engine.kv.mover import BlockMover
from engine.kv.pool import KVPool
from engine.kv.spec import make_spec
from engine.model.config import DenseMLP, HeadAttention, LayerConfig, ModelConfig
from engine.model.rope import Rope
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from infra.network.bind_address import LOOPBACK_ADDRESS
from infra.network.sockets import payload_dealer, payload_router, send_now, send_now_tracked
from kvtransfer.decode_transfer import DecodeTransfer
from kvtransfer.events import (
    BlocksGranted,
    BlocksWanted,
    Closed,
    CommitHandoff,
    LayerReady,
    OpenHandoff,
    ToDecodeEngine,
    ToPrefillEngine,
    Unpinned,
)
from kvtransfer.prefill_transfer import PrefillTransfer

LAYERS, BLOCK_TOKENS = 16, 16
SPEC = make_spec(
    ModelConfig(
        name="benchmark",
        architecture="LlamaForCausalLM",
        vocab_size=1,
        hidden_size=4096,
        layers=(
            LayerConfig(
                HeadAttention(heads=32, kv_heads=8, head_dim=128, scale=1.0, rope=Rope(dim=128)),
                DenseMLP(intermediate=1),
            ),
        )
        * LAYERS,
        norm_eps=1e-6,
        max_model_len=1,
        eos_token_ids=(),
    ),
    torch.bfloat16,
    BLOCK_TOKENS,
    "none",
)
SECRET = b"a secret of a benchmark"
HANDOFF_TIMEOUT_S = 60.0


def pool(size: int, seed: int, device: torch.device, *, is_shared: bool = False) -> KVPool:
    """Makes a pool of `size` bytes and the null block, all pages touched: random numbers, or zeros for seed 0."""
    blocks = size // SPEC.block_bytes() + 1
    found = KVPool(SPEC, [blocks], device, *_carriers(device), is_shared=is_shared)
    found.begin()
    random = torch.Generator(device).manual_seed(seed)
    for layer in found.layers:
        layer.normal_(generator=random) if seed else layer.fill_(0)
        layer[0] = 0
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # a transfer waits for steps and moves, and this was neither
    return found


def _carriers(device: torch.device) -> tuple[BlockMover, BlockCodec]:
    if device.type == "cuda":
        from engine.backends.triton.codec import TritonCodec
        from engine.backends.triton.mover import TritonMover

        return TritonMover(), TritonCodec()
    return ReferenceMover(), _host_codec()


def _host_codec() -> BlockCodec:
    try:
        return NativeCodec(load())
    except NativeError:
        return ReferenceCodec()


class Near:
    """Sends handoffs to a far end."""

    def __init__(self, config: TransferConfig, network: Network, source: KVPool) -> None:
        self._closed: dict[int, Closed] = {}
        self._done: dict[int, asyncio.Event] = {}
        self._number = 0
        self.outbound = PrefillTransfer(config, "prefill", SPEC, source, network, self._report)

    def _report(self, event: ToPrefillEngine) -> None:
        if isinstance(event, Unpinned):
            self._done[event.handoff].set()
        else:
            self._closed[event.handoff] = event

    async def send(self, address: str, size: int) -> None:
        """Makes one handoff of `size` bytes, from Open until nothing is read any more."""
        self._number += 1
        number, count = self._number, max(1, size // SPEC.block_bytes())
        prompt = Prompt([0] * (count * BLOCK_TOKENS), count * BLOCK_TOKENS)
        job = PrefillJob(
            request=str(number),
            attempt=1,
            sender="g",
            receiver="prefill",
            prompt=prompt,
            sampling=Sampling(seed=0),
            limits=Limits(max_tokens=1),
            deadline=0.0,
            queued_at=0.0,
            decode_epoch="decode",
            decode_address=address,
        )
        self._done[number] = asyncio.Event()
        ids = packed(prompt.token_ids)
        now, blocks = time.monotonic(), list(range(1, 1 + count))
        self.outbound.handle(OpenHandoff(number, job, ids, job.samples, now + HANDOFF_TIMEOUT_S, now, (blocks,)))
        for layer in range(LAYERS):
            self.outbound.handle(LayerReady(number, 0, layer, count))
        self.outbound.handle(CommitHandoff(number, [Branch(0, [1])], Stages(), now))
        async with asyncio.timeout(HANDOFF_TIMEOUT_S):
            await self._done[number].wait()
        assert self._closed[number].outcome == "accepted", self._closed[number].reason


class NearRaw:
    """Sends bare frames over a payload socket, without copying: what ZeroMQ itself does."""

    def __init__(self, context: zmq.asyncio.Context, address: str, source: KVPool, frame: int) -> None:
        self._socket = payload_dealer(context, address, b"raw", "raw", "raw")
        self._source = layers_of(source)
        self._frame = frame

    async def send(self, size: int) -> None:
        """Sends `size` bytes, and returns when the other end has copied the last of them."""
        async with asyncio.timeout(HANDOFF_TIMEOUT_S):
            for array in self._source:
                layer = array[: size // LAYERS]
                for at in range(0, len(layer), self._frame):
                    while send_now_tracked(self._socket, [layer[at : at + self._frame].data]) is None:
                        await asyncio.sleep(0)
                    await asyncio.sleep(0)
            while not send_now(self._socket, [b"end"]):
                await asyncio.sleep(0)
            await self._socket.recv_multipart()

    def close(self) -> None:
        self._socket.close(0)


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def _far(config: TransferConfig, size: int, device: torch.device) -> None:
    network = Network.of(SECRET)

    def on_inbound(event: ToDecodeEngine) -> None:
        if isinstance(event, BlocksWanted):
            count = event.open.tokens // BLOCK_TOKENS
            inbound.handle(BlocksGranted(event.key, (list(range(1, 1 + count)),), (0,)))

    target = pool(size, 0, device, is_shared=config.kv_transport == "pool")
    inbound = DecodeTransfer(config, "decode", SPEC, target, network, on_inbound)
    await _answer(inbound.handoff_address, lambda: sums(target))
    await inbound.close()
    await network.close()


async def _far_raw(size: int) -> None:
    network = Network.of(SECRET)
    network.gatekeeper.expect("raw", "raw")
    socket, address = payload_router(network.context, LOOPBACK_ADDRESS)
    target: npt.NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, size, np.uint8)

    async def receive() -> None:
        at = 0
        while True:
            link, part = await socket.recv_multipart(copy=False)
            if len(part.buffer) == len(b"end"):
                at = 0
                send_now(socket, [link.bytes, b"all"])
            else:
                target[at : at + len(part.buffer)] = np.frombuffer(part.buffer, np.uint8)
                at += len(part.buffer)

    receiving = asyncio.create_task(receive())
    await _answer(address, dict)
    receiving.cancel()
    socket.close(0)
    await network.close()


async def _answer(address: str, more: Callable[[], dict[str, Any]]) -> None:
    print(json.dumps({"address": address}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        usage = {"peak": peak_bytes(), "processor": time.process_time()}
        print(json.dumps(more() if line.strip() == "sums" else usage), flush=True)


def layers_of(found: KVPool) -> list[npt.NDArray[np.uint8]]:
    if found.layers[0].is_cuda:
        torch.cuda.synchronize(found.layers[0].device)
    return [layer[1:].flatten().view(torch.uint8).cpu().numpy() for layer in found.layers]


def sums(found: KVPool) -> dict[str, float]:
    """Sums up all blocks: their bytes, and the mean of their numbers' sizes."""
    return {
        "bytes": float(sum(int(layer.sum(dtype=np.uint64)) for layer in layers_of(found))),
        "mean": sum(float(layer[1:].float().abs().mean()) for layer in found.layers) / LAYERS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.transfer.ends", description=__doc__)
    parser.add_argument("--config", default="", help="a TransferConfig as JSON; empty: bare frames")
    parser.add_argument("--size", type=int, required=True, help="bytes of the pool")
    parser.add_argument("--device", default="cpu", help="where the pool is")
    options = parser.parse_args()
    if options.config:
        config = msgspec.json.decode(options.config, type=TransferConfig)
        asyncio.run(_far(config, options.size, torch.device(options.device)))
    else:
        asyncio.run(_far_raw(options.size))


if __name__ == "__main__":
    main()
