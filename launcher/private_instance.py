"""An instance that `baton chat` starts for itself and stops when it leaves."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.child import die_with
from launcher.options import ROOT
from launcher.state_directory import running

LOOK_SECONDS = 0.2
GRACE_SECONDS = 60.0  # `up` bounds its own stop; this is for one that hangs


class NotStarted(Exception):
    """The instance ended before it was ready; it has said why."""


@contextmanager
def private_instance() -> Iterator[str]:
    """Starts `baton up` on a free port; the value is its URL. Raises `NotStarted`."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "launcher", "up", "--port", "0", "--dashboard-port", "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in the chat stops an answer, not the instance
        preexec_fn=die_with(os.getpid()),
    )
    try:
        while True:
            mine = [instance.url for instance in running() if instance.pid == process.pid]
            if mine:
                break
            if process.poll() is not None:
                raise NotStarted("the instance did not start")
            time.sleep(LOOK_SECONDS)
        yield mine[0]
    finally:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
