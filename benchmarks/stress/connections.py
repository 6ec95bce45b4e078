"""Measures a gateway's memory and clients under hostile connections: `python -m benchmarks.stress.connections`.

Ten thousand connections send half a head, then many send a large body without its last byte, then many ask for prompts
of 4 MB at once. Meanwhile an honest client asks for /health on new connections. At the end all abuse stops, and the
gateway's resident memory is watched at rest; it should return to about its first value.
"""

import argparse
import asyncio
import contextlib
import http.client
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.processes.children import exit_status
from benchmarks.processes.split_system import split_system
from infra.process.descriptors import raise_limit
from launcher.options import DEMO_MODEL
from launcher.stages import StageDisplay

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = b'{"prompt": "' + b"Once upon a time. " * 222_000 + b'"}'
HOLD_S = 5.0  # for which connections are left open
HONEST_TIMEOUT_S = 5.0  # after which the honest client gives a try up
REST_LOOKS_S = (0.0, 5.0, 15.0, 30.0)


class Abuser:
    """Opens connections to a gateway, and reads its memory."""

    def __init__(self, url: str, pid: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._pid = pid

    def memory(self) -> float:
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024

    async def hold(self, count: int, said: bytes) -> None:
        writers: list[asyncio.StreamWriter] = []
        waiting = asyncio.Semaphore(200)

        async def open_one() -> None:
            async with waiting:
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(HOLD_S):
                        _, writer = await asyncio.open_connection(*self._address)
                        writers.append(writer)
                        writer.write(said)
                        await writer.drain()

        await asyncio.gather(*(open_one() for _ in range(count)))
        await asyncio.sleep(HOLD_S)
        for writer in writers:
            writer.transport.abort()

    async def ask(self, count: int) -> None:
        async def ask_one() -> None:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(*self._address)
                writer.write(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
                await reader.read()
                writer.close()

        await asyncio.gather(*(ask_one() for _ in range(count)))

    def honest(self, seen: list[float], done: threading.Event) -> None:
        """Asks for /health until `done`, each time on a new connection; notes the waits, s, or infinity."""
        while not done.is_set():
            client = http.client.HTTPConnection(*self._address, timeout=HONEST_TIMEOUT_S)
            began = time.perf_counter()
            try:
                client.request("GET", "/health")
                client.getresponse().read()
                seen.append(time.perf_counter() - began)
            except OSError:
                seen.append(float("inf"))
            client.close()
            done.wait(0.05)

    async def phase(self, name: str, abuse: Coroutine[Any, Any, None]) -> None:
        seen: list[float] = []
        done = threading.Event()
        honest = asyncio.create_task(asyncio.to_thread(self.honest, seen, done))
        work, most = asyncio.create_task(abuse), 0.0
        while not work.done():
            most = max(most, self.memory())
            await asyncio.wait({work}, timeout=0.1)
        done.set()
        await honest
        lost, waits = sum(wait == float("inf") for wait in seen), [wait for wait in seen if wait < float("inf")]
        longest = f"{max(waits) * 1e3:.0f} ms" if waits else "-"
        print(f"{name:34}{most:>8.0f} MiB at most   honest: {lost} of {len(seen)} lost, longest wait {longest}")


async def _run(abuser: Abuser, connections: int, bodies: int) -> None:
    print(f"{'before':34}{abuser.memory():>8.0f} MiB")
    await abuser.phase(f"{connections} connections, half a head", abuser.hold(connections, HEAD))
    unfinished = HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) + 1) + BODY
    await abuser.phase(f"{bodies} bodies of 4 MB, unfinished", abuser.hold(bodies, unfinished))
    await abuser.phase(f"{bodies} prompts of 4 MB", abuser.ask(bodies))
    began = time.monotonic()
    for seconds in REST_LOOKS_S:
        await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
        print(f"{f'{seconds:.0f} s after all of it':34}{abuser.memory():>8.0f} MiB")


@contextmanager
def _system() -> Iterator[Abuser]:
    with (
        tempfile.TemporaryDirectory(prefix="baton-stress-") as directory,
        split_system(DEMO_MODEL, Path(directory)) as system,
    ):
        yield Abuser(system.url, system.processes["gateway"].pid)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stress.connections", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000, help="connections with half a head (default 10000)")
    parser.add_argument("--bodies", type=int, default=300, help="large bodies at once (default 300)")
    given = parser.parse_args()
    raise_limit()

    def run(stages: StageDisplay) -> None:
        with _system() as abuser:
            asyncio.run(_run(abuser, given.connections, given.bodies))

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
