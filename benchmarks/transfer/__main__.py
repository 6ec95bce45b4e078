"""Measures GB/s of a handoff, per transport, security and codec, beside pyzmq, memcpy, AES-GCM and XXH3 in one run.

    python -m benchmarks.transfer [--megabytes 256] [--rounds 7] [--device cuda] [--ways pool shm]

Prefill and decode side are two processes on this host, with the engine's own pools, in bf16; with `--device cuda` both
pools are the same GPU's, and rows without a handoff are of the host's memory all the same. A round measures
each row once, in turn; a figure is the best of all rounds, in bytes of the pool, whatever a codec makes of them.
Processor time is that of each end's process, all threads together, in milliseconds for each GiB; the rows without a
handoff say what a copy and a digest take of it. *Raw
pyzmq* sends frames of the same size without copying, and copies each once on arrival, as a handoff does. *Memory* is
the peak of the receiving process beyond its memory after moving one block; the window bounds it. The sender's is that
of all its links together.
"""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import xxhash
import zmq
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.processes.children import child, end_on_termination
from benchmarks.report import head, row
from benchmarks.transfer.ends import (
    LAYERS,
    SECRET,
    Near,
    NearRaw,
    layers_of,
    peak_bytes,
    pool,
    sums,
)
from engine.kv.pool import KVPool
from infra.config.transfer import TransferConfig
from infra.network.addresses import Network
from launcher.bench.machine import processor

BYTES_PER_GB = 1e9
BYTES_PER_MIB = 1 << 20
WAYS = {
    "tcp": TransferConfig(kv_transport="tcp", kv_security="none"),
    "tcp, sealed": TransferConfig(kv_transport="tcp"),
    "ipc": TransferConfig(kv_transport="ipc"),
    "shm": TransferConfig(kv_transport="shm"),
    "pool": TransferConfig(kv_transport="pool"),
    "nixl": TransferConfig(kv_transport="nixl"),  # over TCP, on a host without RDMA
    "tcp, sealed, int8": TransferConfig(kv_transport="tcp", kv_codec="int8"),
    "tcp, sealed, fp8": TransferConfig(kv_transport="tcp", kv_codec="fp8"),
    "shm, int8": TransferConfig(kv_transport="shm", kv_codec="int8"),
}


@dataclass
class Row:
    """Something measured, round by round."""

    name: str
    seconds: list[float] = field(default_factory=list)
    memory: int = 0  # bytes
    sender: list[float] = field(default_factory=list)  # seconds of the processor
    receiver: list[float] = field(default_factory=list)

    def rate(self, size: int) -> float:
        return size / BYTES_PER_GB / min(self.seconds)


class FarEnd:
    """Talks to a receiving process."""

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        name: str,
        size: int,
        device: str,
        config: TransferConfig | None,
    ) -> None:
        command = [sys.executable, "-m", "benchmarks.transfer.ends", "--size", str(size), "--device", device]
        if config is not None:
            command += ["--config", msgspec.json.encode(config).decode()]
        self._process = stack.enter_context(child(command, directory / f"{name}.log", piped=True))

    @cached_property
    def address(self) -> str:
        return str(self._read()["address"])

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


async def measure(
    megabytes: int, frame: int, rounds: int, device: str = "cpu", ways: Sequence[str] = tuple(WAYS)
) -> tuple[list[Row], int]:
    """Measures the rows of `ways` and the rows without a handoff, round by round, and the sender's memory.

    Raises AssertionError if a byte arrives wrong.
    """
    size = megabytes << 20
    source = pool(size, 1, torch.device(device))
    rows = {name: Row(name) for name in ("memcpy", "AES-256-GCM", "XXH3", "raw pyzmq", *ways)}
    network = Network.of(SECRET)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        logs = Path(directory)
        raw_end = FarEnd(stack, logs, "raw", size, device, None)
        ends, near = {}, {}
        for name in ways:
            config = msgspec.structs.replace(WAYS[name], frame=frame)
            ends[name] = FarEnd(stack, logs, name.replace(", ", "-"), size, device, config)
            near[name] = Near(config, network, source)
        raw = NearRaw(network.context, raw_end.address, source, frame)
        try:
            work: dict[str, Callable[[], Awaitable[None]]] = {"raw pyzmq": lambda: raw.send(size)}
            for name in ways:
                work[name] = _handoff(near[name], ends[name].address, size)
            before = {}
            for name in ways:
                await near[name].send(ends[name].address, 1)
                before[name] = ends[name].ask("peak")["peak"]
            own = peak_bytes()
            for send in work.values():
                await send()  # connects, and touches memory for the first time
            own = peak_bytes() - own  # before anything is measured here that takes memory as well
            for _ in range(rounds):
                for name, seconds, used in local(source, frame):
                    rows[name].seconds.append(seconds)
                    rows[name].sender.append(used)
                for name, send in work.items():
                    far = ends.get(name, raw_end)
                    began, mine, theirs = time.perf_counter(), time.process_time(), far.ask("peak")["processor"]
                    await send()
                    rows[name].seconds.append(time.perf_counter() - began)
                    rows[name].sender.append(time.process_time() - mine)
                    rows[name].receiver.append(far.ask("peak")["processor"] - theirs)
            expected = sums(source)
            for name, end in ends.items():
                rows[name].memory = end.ask("peak")["peak"] - before[name]
                found = end.ask("sums")
                exact = WAYS[name].kv_codec == "none"
                assert found["bytes"] == expected["bytes"] or not exact, f"{name}: bytes differ"
                assert abs(found["mean"] / expected["mean"] - 1) < 0.02, f"{name}: numbers differ"
        finally:
            raw.close()
            for each in near.values():
                await each.outbound.close()
            await network.close()
    return list(rows.values()), own


def _handoff(near: Near, address: str, size: int) -> Callable[[], Awaitable[None]]:
    return lambda: near.send(address, size)


def local(source: KVPool, frame: int) -> Iterator[tuple[str, float, float]]:
    """Measures the seconds, passed and of the processor, of copying, sealing and digesting the same bytes in frames."""
    parts = [layer[at : at + frame] for layer in layers_of(source) for at in range(0, len(layer), frame)]
    target = np.empty((len(parts), frame), np.uint8)
    target.fill(1)
    cipher, sealed = AESGCM(bytes(32)), memoryview(bytearray(frame + 16))

    def copy(at: int, part: npt.NDArray[np.uint8]) -> None:
        target[at, : len(part)] = part

    def seal(at: int, part: npt.NDArray[np.uint8]) -> None:
        cipher.encrypt_into(at.to_bytes(12, "little"), part.data, b"", sealed[: len(part) + 16])

    def digest(at: int, part: npt.NDArray[np.uint8]) -> None:
        xxhash.xxh3_64_intdigest(part.data)

    for name, work in (("memcpy", copy), ("AES-256-GCM", seal), ("XXH3", digest)):
        began, used = time.perf_counter(), time.process_time()
        for at, part in enumerate(parts):
            work(at, part)
        yield name, time.perf_counter() - began, time.process_time() - used


def table(rows: list[Row], size: int) -> Iterator[str]:
    rates = {each.name: each.rate(size) for each in rows}
    yield head("", "GB/s", "of raw pyzmq", "of memcpy", "of tcp", "memory MiB", "sender ms/GiB", "receiver ms/GiB")
    for each in rows:
        rate = rates[each.name]
        others = [rates.get(other) for other in ("raw pyzmq", "memcpy", "tcp")]
        shares = ["" if other is None else f"{100 * rate / other:.0f}%" for other in others]
        ends = [f"{1000 * min(used) * (1 << 30) / size:.0f}" if used else "" for used in (each.sender, each.receiver)]
        yield row(each.name, f"{rate:.2f}", *shares, f"{each.memory / BYTES_PER_MIB:.0f}", *ends)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.transfer", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="MiB of one handoff")
    parser.add_argument("--frame", type=int, default=1 << 20, help="bytes of one payload")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where both pools are")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="handoffs to measure")
    options = parser.parse_args()
    end_on_termination()
    rows, own = asyncio.run(measure(options.megabytes, options.frame, options.rounds, options.device, options.ways))
    versions = f"Python {platform.python_version()}, pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}"
    print(f"{processor()}, pools on {options.device}, {versions}")
    size = f"{options.megabytes} MiB in {LAYERS} layers, payloads of {options.frame >> 10} KiB"
    print(f"{size}; sender's memory {own / BYTES_PER_MIB:.0f} MiB over {len(options.ways)} links\n")
    print("\n".join(table(rows, options.megabytes << 20)))


if __name__ == "__main__":
    main()
