"""A decode worker whose engine thread hangs between two steps once a file appears, as a driver's call may.

`python -m benchmarks.stress.hanging_worker` takes a decode worker's options. `BATON_HANG_FILE` names the file, which
the worker removes before it hangs, so that its next life does not hang.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

from decode_service.__main__ import role
from engine.schedule.sequence import Sequence
from infra.cli import parse_or_exit
from infra.config.worker import WorkerConfig
from worker.role import Role, WorkerParts
from worker.start import serve

HANG_FILE = "BATON_HANG_FILE"


class HangingPolicy:
    """Does what a decode worker does, until it hangs with the sequences of the next step in hand."""

    def __init__(self, policy: Any, file: Path) -> None:
        self._policy = policy
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def admitted(self, sequences: list[Sequence], now: float) -> None:
        if self._policy.load().running and self._file.exists():
            self._file.unlink()
            threading.Event().wait()
        self._policy.admitted(sequences, now)


def hanging(parts: WorkerParts) -> Role:
    made = role(parts)
    return made._replace(policy=HangingPolicy(made.policy, Path(os.environ[HANG_FILE])))


if __name__ == "__main__":
    sys.exit(serve("decode", parse_or_exit(WorkerConfig, "decode_service"), hanging))
