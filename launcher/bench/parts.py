"""Sends a load from several processes, each with a part of the requests, since one process times only so many tokens.

A process reads its part from standard input, says that it is ready, reads when the load begins (by the clock that all
processes of a host share), writes a line of its progress each second, and at the end the figures of its part.
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
from msgspec import Struct, structs

from contracts.errors import GatewayError
from contracts.slo import SLO
from infra.process.ending import end
from infra.process.tasks import child
from launcher.bench.sender import Sender, connections_to
from launcher.instance.endpoint import ClientEndpoint
from launcher.options import ROOT
from workloads.figures import LoadFigures
from workloads.request import TimedRequest

PART_TOKENS_PER_S = 10_000
"""Output tokens for which a process needs a fifth of a core: 500 streams of 20 tokens/s (`benchmarks.generator`)."""
LENGTH_FORMAT, BEGIN_FORMAT = struct.Struct("<Q"), struct.Struct("<d")
READY_LINE, END_LINE = b"ready\n", b"end\n"
TELL_PERIOD_S = 1.0
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


class PartProcesses:
    """Processes of this host that each send a part of a load; `sent` and `ended` count the requests of all parts."""

    def __init__(self, whole: LoadPart, count: int) -> None:
        self._whole = whole
        self._count = count
        self._running = list[_PartProcess]()

    @property
    def sent(self) -> int:
        return sum(part.sent for part in self._running)

    @property
    def ended(self) -> int:
        return sum(part.ended for part in self._running)

    async def send(self) -> SentLoad:
        """Sends the load; cancelled, it returns what was measured. Raises `GatewayError`."""
        whole, interrupted = self._whole, False
        try:
            for at in range(self._count):
                requests = whole.load[at :: self._count]
                self._running.append(await _PartProcess.start(structs.replace(whole, load=requests)))
            await self._ready()
            begin = asyncio.get_running_loop().time() + LEAD_S
            reads = [child(part.run(begin)) for part in self._running]
            try:
                await asyncio.wait(reads)
            except asyncio.CancelledError:
                interrupted = True
                for part in self._running:
                    part.interrupt()
                await asyncio.wait(reads, timeout=END_TIMEOUT_S)
            await end(reads)
        finally:
            for part in self._running:
                await part.kill()
        found = [part.measured for part in self._running if part.measured is not None]
        if len(found) < self._count and not interrupted:
            raise GatewayError("a process of the load generator died")
        figures = LoadFigures(slo=whole.slo)
        for each in found:
            figures.merge(each.figures)
        return SentLoad(figures, interrupted or any(each.interrupted for each in found))

    async def _ready(self) -> None:
        """Raises `GatewayError` for a process that ends or hangs before it can send."""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S):
                if all([await part.ready() for part in self._running]):
                    return
        raise GatewayError("a process of the load generator did not start")


class _PartProcess:
    """A process that sends a part: how many of its requests were sent and have ended, then what it has measured."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self.sent = self.ended = 0
        self.measured: SentLoad | None = None

    @classmethod
    async def start(cls, part: LoadPart) -> "_PartProcess":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "launcher.bench.parts"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        made, data = cls(process), msgspec.msgpack.encode(part)
        made._stdin.write(LENGTH_FORMAT.pack(len(data)) + data)
        await made._stdin.drain()
        return made

    async def ready(self) -> bool:
        return await self._stdout.readline() == READY_LINE

    async def run(self, begin: float) -> None:
        """Reads the process's progress and what it has measured. `begin`: the load's start, by the loop's clock."""
        self._stdin.write(BEGIN_FORMAT.pack(begin))
        while (line := await self._stdout.readline()).endswith(b"\n") and line != END_LINE:
            self.sent, self.ended = map(int, line.split())
        if found := await self._stdout.read():
            self.measured = msgspec.msgpack.decode(found, type=SentLoad)
        await self._process.wait()

    def interrupt(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


def main() -> None:
    """Sends the part that standard input describes."""
    read = sys.stdin.buffer.read
    part = msgspec.msgpack.decode(read(LENGTH_FORMAT.unpack(read(LENGTH_FORMAT.size))[0]), type=LoadPart)
    _write(READY_LINE)
    (begin,) = BEGIN_FORMAT.unpack(read(BEGIN_FORMAT.size))
    measured = uvloop.run(_send(part, begin))
    sys.stdout.buffer.write(END_LINE + msgspec.msgpack.encode(measured))


async def _send(part: LoadPart, begin: float) -> SentLoad:
    figures = LoadFigures(slo=part.slo)
    async with connections_to(part.endpoint, part.timeout_s) as connections:
        sender = Sender(connections, part.model, part.vocabulary, figures.add)
        telling = child(_tell(sender))
        try:
            await sender.open_load(part.load, part.linger_s, begin)
        except asyncio.CancelledError:
            return SentLoad(figures, interrupted=True)
        finally:
            await end([telling])
        return SentLoad(figures, interrupted=False)


async def _tell(sender: Sender) -> None:
    while True:
        await asyncio.sleep(TELL_PERIOD_S)
        _write(b"%d %d\n" % (sender.sent, sender.ended))


def _write(line: bytes) -> None:
    os.write(sys.stdout.fileno(), line)


if __name__ == "__main__":
    main()
