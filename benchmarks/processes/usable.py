"""Waits until services that were started for a measurement do their work."""

import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from benchmarks.processes.children import last_line
from contracts.errors import BatonError

LOOK_SECONDS = 0.05
ANSWER_TIMEOUT_S = 10.0
START_TIMEOUT_S = 300.0
USABLE = re.compile(r"^baton:worker_usable\{.*\} 1\.0$", re.MULTILINE)


def bearer(key: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def usable_workers(url: str, key: str = "") -> int:
    """Returns the number of workers that the gateway of `url` uses, 0 if it does not answer.

    A gateway is ready with a decode worker alone. `key` is an operator's API key, where one is required.
    """
    try:
        return len(USABLE.findall(httpx.get(f"{url}/metrics", headers=bearer(key), timeout=ANSWER_TIMEOUT_S).text))
    except httpx.HTTPError:
        return 0


def wait_until(
    condition: Callable[[], bool], what: str, log: Path, process: "subprocess.Popen[str] | None" = None
) -> None:
    """Waits for the condition. Raises `BatonError` if it takes too long, or the process has ended before."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise BatonError(f"{what}: not ready; the last line of {log} is {last_line(log)!r}")
        time.sleep(LOOK_SECONDS)
