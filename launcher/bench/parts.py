"""Sends a load from several processes, each with a part of the requests, since one process times only so many tokens.

A process reads its part from standard input, says that it is ready, reads when the load begins (by the clock that all
processes of a host share), and writes the figures of its part.
"""

import asyncio
import math
import os
import signal
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import uvloop
from msgspec import Struct

from contracts.errors import GatewayError
from contracts.slo import SLO
from infra.process.tasks import child
from launcher.bench.sender import Sender, connections_to
from launcher.instance.endpoint import ClientEndpoint
from launcher.options import ROOT
from workloads.figures import LoadFigures
from workloads.request import TimedRequest

PART_TOKENS_PER_S = 10_000
"""Output tokens for which a process needs a fifth of a core: 500 streams of 20 tokens/s (`benchmarks.generator`)."""
LENGTH_FORMAT, BEGIN_FORMAT = struct.Struct("<Q"), struct.Struct("<d")
READY_LINE = b"ready\n"
START_TIMEOUT_S = 60.0
"""Longest start of a process, in seconds: imports on a busy machine."""
LEAD_S = 0.05
"""Seconds from the last process's readiness to the start of the load."""
END_TIMEOUT_S = 10.0
"""Seconds after Ctrl-C for the processes to write what they have measured."""


class LoadPart(Struct, frozen=True):
    """The part of a load that one process sends. `linger_s`: see `Sender.open_load`."""

    endpoint: ClientEndpoint
    model: str
    vocabulary: int
    timeout_s: float
    linger_s: float | None
    slo: SLO
    load: list[TimedRequest]


class SentLoad(Struct, frozen=True):
    """What was measured of a load or of a part, and whether Ctrl-C ended it."""

    figures: LoadFigures
    interrupted: bool


def processes_for(load: Sequence[TimedRequest], cores: int) -> int:
    """Returns how many processes the load's output tokens per second need, as a mean over its duration."""
    tokens = sum(turn.output_tokens for each in load for turn in each.request.turns())
    seconds = max(1.0, load[-1].due_s) if load else 1.0
    return max(1, min(cores, math.ceil(tokens / seconds / PART_TOKENS_PER_S)))


async def send_in_parts(whole: LoadPart, processes: int) -> SentLoad:
    """Sends a load from processes of this host; cancelled, it returns what they measured. Raises `GatewayError`."""
    parts = [msgspec.structs.replace(whole, load=whole.load[at::processes]) for at in range(processes)]
    running = [await _start(part) for part in parts]
    interrupted = False
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            for process in running:
                if await _stdout(process).readline() != READY_LINE:
                    raise GatewayError("a process of the load generator did not start")
        begin = BEGIN_FORMAT.pack(asyncio.get_running_loop().time() + LEAD_S)
        for process in running:
            _stdin(process).write(begin)
        reads = [child(_stdout(process).read()) for process in running]
        try:
            await asyncio.wait(reads)
        except asyncio.CancelledError:
            interrupted = True
            for process in running:
                if process.returncode is None:
                    process.send_signal(signal.SIGINT)
            await asyncio.wait(reads, timeout=END_TIMEOUT_S)
        found = [
            msgspec.msgpack.decode(read.result(), type=SentLoad) for read in reads if read.done() and read.result()
        ]
        with suppress(TimeoutError):  # a process that has written its figures ends by itself
            async with asyncio.timeout(END_TIMEOUT_S):
                for process, read in zip(running, reads, strict=True):
                    if read.done():
                        await process.wait()
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
            await process.wait()
    if len(found) < processes and not interrupted:
        raise GatewayError("a process of the load generator died")
    figures = LoadFigures(slo=whole.slo)
    for part in found:
        figures.merge(part.figures)
    return SentLoad(figures, interrupted or any(part.interrupted for part in found))


async def _start(part: LoadPart) -> asyncio.subprocess.Process:
    command = (sys.executable, "-P", "-m", "launcher.bench.parts")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True, env=environment
    )
    data = msgspec.msgpack.encode(part)
    _stdin(process).write(LENGTH_FORMAT.pack(len(data)) + data)
    await _stdin(process).drain()
    return process


def _stdin(process: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    assert process.stdin is not None
    return process.stdin


def _stdout(process: asyncio.subprocess.Process) -> asyncio.StreamReader:
    assert process.stdout is not None
    return process.stdout


def main() -> None:
    """Sends the part that standard input describes."""
    read = sys.stdin.buffer.read
    part = msgspec.msgpack.decode(read(LENGTH_FORMAT.unpack(read(LENGTH_FORMAT.size))[0]), type=LoadPart)
    os.write(sys.stdout.fileno(), READY_LINE)
    (begin,) = BEGIN_FORMAT.unpack(read(BEGIN_FORMAT.size))
    sys.stdout.buffer.write(msgspec.msgpack.encode(uvloop.run(_send(part, begin))))


async def _send(part: LoadPart, begin: float) -> SentLoad:
    figures = LoadFigures(slo=part.slo)
    async with connections_to(part.endpoint, part.timeout_s) as connections:
        sender = Sender(connections, part.model, part.vocabulary, figures.add)
        try:
            await sender.open_load(part.load, part.linger_s, begin)
        except asyncio.CancelledError:
            return SentLoad(figures, interrupted=True)
        return SentLoad(figures, interrupted=False)


if __name__ == "__main__":
    main()
