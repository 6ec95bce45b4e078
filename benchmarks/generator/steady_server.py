"""Runs the server of known moments on a core of its own."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.setup import PeerError
from benchmarks.processes.children import child, last_line


@contextmanager
def steady_server(log: Path, streams: int, rate: float, batch: int) -> Iterator[str]:
    """Yields the URL of a server of `streams` at `rate` tokens/s, on the first core; the caller runs on the last.

    `batch`: streams whose tokens have the same moments. Raises `PeerError` for a server that does not start.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])  # the server inherits it
    words = ("--interval-ms", str(1000 / rate), "--batch", str(batch), "--streams", str(streams))
    try:
        with child((sys.executable, "-m", "benchmarks.generator.known_moments", *words), log, piped=True) as server:
            os.sched_setaffinity(0, cores[-1:])
            assert server.stdout is not None
            if not (port := server.stdout.readline().strip()):
                raise PeerError(f"the server of known moments has ended: {last_line(log)}")
            yield f"http://127.0.0.1:{port}"
    finally:
        os.sched_setaffinity(0, cores)
