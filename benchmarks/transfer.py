"""GB/s of a handoff, per transport and security, beside raw pyzmq, memcpy, AES-GCM and XXH3 measured in the same run.

    python -m benchmarks.transfer [--megabytes 64] [--rounds 7]

Prefill and decode side are two processes on this host. A round measures each row once, in turn; a figure is the best of
all rounds. *Raw pyzmq* sends frames of the same size without copying, and copies each once on arrival, as a handoff
does. *Memory* is what the sending and the receiving process took at most beyond a process of the same kind that has
moved one block only.
"""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
import zmq
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.array_pool import ArrayPool
from benchmarks.children import child, end_on_termination
from benchmarks.machine import processor
from benchmarks.transfer_ends import BLOCK_BYTES, LAYERS, SECRET, Near, NearRaw, checksum, pool
from core.config import TransferConfig
from core.network import Network

GIGA = 1e9
WAYS = {
    "tcp": TransferConfig(kv_transport="tcp", kv_security="none"),
    "tcp, sealed": TransferConfig(kv_transport="tcp"),
    "ipc": TransferConfig(kv_transport="ipc"),
    "shm": TransferConfig(kv_transport="shm"),
}


@dataclass
class Row:
    """Something measured, round by round."""

    name: str
    seconds: list[float] = field(default_factory=list)

    def rate(self, size: int) -> float:
        """GB/s of the best round."""
        return size / GIGA / min(self.seconds)


class FarEnd:
    """A receiving process."""

    def __init__(self, stack: ExitStack, directory: Path, name: str, size: int, config: TransferConfig | None) -> None:
        command = [sys.executable, "-m", "benchmarks.transfer_ends", "--size", str(size)]
        if config is not None:
            command += ["--config", msgspec.json.encode(config).decode()]
        self._process = stack.enter_context(child(command, directory / f"{name}.log", piped=True))
        self.address = str(self._read()["address"])

    def ask(self) -> dict[str, Any]:
        """Its peak of memory, and the sum of its pool's bytes."""
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


async def measure(megabytes: int, frame: int, rounds: int) -> list[Row]:
    """All rows, round by round. Raises AssertionError if a byte arrives wrong."""
    size = megabytes << 20
    source = pool(size, seed=1)
    rows = {name: Row(name) for name in ("memcpy", "AES-256-GCM", "XXH3", "raw pyzmq", *WAYS)}
    network = Network.of(SECRET)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        logs = Path(directory)
        raw_end = FarEnd(stack, logs, "raw", size, None)
        raw = NearRaw(network.context, raw_end.address, source, frame)
        ends, near = {}, {}
        for name, way in WAYS.items():
            config = msgspec.structs.replace(way, frame=frame)
            ends[name] = FarEnd(stack, logs, name.replace(", ", "-"), size, config)
            near[name] = Near(config, network, source)
        try:
            work: dict[str, Callable[[], Awaitable[None]]] = {"raw pyzmq": lambda: raw.send(size)}
            for name in WAYS:
                work[name] = _handoff(near[name], ends[name].address, size)
            for _ in range(rounds + 1):
                for name, seconds in local(source, frame):
                    rows[name].seconds.append(seconds)
                for name, send in work.items():
                    begin = time.perf_counter()
                    await send()
                    rows[name].seconds.append(time.perf_counter() - begin)
            for name, end in ends.items():
                assert end.ask()["sum"] == checksum(source), f"{name}: bytes differ"
        finally:
            raw.close()
            for each in near.values():
                await each.outbound.close()
            await network.close()
    for row in rows.values():
        del row.seconds[0]  # connects, and touches memory for the first time
    return list(rows.values())


def _handoff(near: Near, address: str, size: int) -> Callable[[], Awaitable[None]]:
    return lambda: near.send(address, size)


def local(source: ArrayPool, frame: int) -> Iterator[tuple[str, float]]:
    """Seconds that one core takes for the same bytes, frame by frame: to copy, to seal, to digest."""
    parts = [
        array.reshape(-1)[at : at + frame]
        for array in source.arrays.values()
        for at in range(BLOCK_BYTES, array.size, frame)
    ]
    target = np.empty((len(parts), frame), np.uint8)
    target.fill(1)
    begin = time.perf_counter()
    for at, part in enumerate(parts):
        target[at, : len(part)] = part
    yield "memcpy", time.perf_counter() - begin
    cipher, sealed = AESGCM(bytes(32)), memoryview(bytearray(frame + 16))
    begin = time.perf_counter()
    for at, part in enumerate(parts):
        cipher.encrypt_into(at.to_bytes(12, "little"), part.data, b"", sealed[: len(part) + 16])
    yield "AES-256-GCM", time.perf_counter() - begin
    begin = time.perf_counter()
    for part in parts:
        xxhash.xxh3_64_intdigest(part.data)
    yield "XXH3", time.perf_counter() - begin


def table(rows: list[Row], size: int) -> Iterator[str]:
    """Markdown: each row's rate, and what it is of the others."""
    rates = {row.name: row.rate(size) for row in rows}
    yield "| | GB/s | of raw pyzmq | of memcpy | of tcp |"
    yield "| --- | --- | --- | --- | --- |"
    for name, rate in rates.items():
        shares = [f"{100 * rate / rates[other]:.0f}%" for other in ("raw pyzmq", "memcpy", "tcp")]
        yield f"| {name} | {rate:.2f} | {' | '.join(shares)} |"


def main() -> None:
    """Entry of `python -m benchmarks.transfer`."""
    parser = argparse.ArgumentParser(prog="benchmarks.transfer", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64, help="MiB of one handoff")
    parser.add_argument("--frame", type=int, default=1 << 20, help="bytes of one payload")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    end_on_termination()
    rows = asyncio.run(measure(options.megabytes, options.frame, options.rounds))
    print(f"{processor()}, Python {platform.python_version()}, pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}")
    print(f"{options.megabytes} MiB in {LAYERS} layers, payloads of {options.frame >> 10} KiB\n")
    print("\n".join(table(rows, options.megabytes << 20)))


if __name__ == "__main__":
    main()
