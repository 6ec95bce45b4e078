"""Runs a service as a child that cannot outlive the launcher, and writes its output to the log under its name."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from infra.process.dying import die_with
from infra.process.memory import out_of_memory_kills
from launcher.host.log_file import Log
from launcher.host.process import Process

CHUNK = 65536  # bytes; what a pipe holds
CHUNKS = 16  # per pump, so that one noisy child does not keep the loop
OUT_OF_MEMORY = (
    "killed by SIGKILL, and the kernel has killed for lack of memory meanwhile: --quantization int4, a smaller"
    " --kv-memory, --model or number of workers, or a higher memory limit helps"
)
LONGEST_LINE = 1 << 20  # bytes; a longer line is cut in the log


class Child:
    """Runs one life of a service. The launcher's loop calls `pump` when there is output to read.

    All services are in the launcher's session. Linux shares cores out among sessions first, where
    `sched_autogroup_enabled` says so: a gateway in one of its own waited up to 300 ms for a core beside busy workers
    in theirs, however nice those were.
    """

    def __init__(self, service: Process, environment: Mapping[str, str], directory: Path, log: Log) -> None:
        self.service = service
        self._log = log
        self._kills_before = out_of_memory_kills()
        self._partial = b""
        self._last_line = ""
        self._last_error = ""
        if service.status_file is not None:
            service.status_file.unlink(missing_ok=True)  # an earlier life's
        self._process = subprocess.Popen(
            service.command,
            cwd=directory,
            env={**environment, **service.settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C in the terminal reaches the launcher only, which stops all in order
            preexec_fn=die_with(os.getpid()),
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        os.set_blocking(self.output.fileno(), False)

    @property
    def pid(self) -> int:
        """Returns the process id, which is also the id of its group."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """Returns None while it runs, a negative number for a signal."""
        return self._process.poll()

    def terminate(self) -> None:
        """Asks the process to end; one that is stopped goes on, or it could not hear it."""
        if self.exit_status() is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process and everything that it started."""
        with suppress(ProcessLookupError):  # the whole group is gone
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def pump(self) -> bool:
        """Moves what the process has written into the log; returns False at the end of its output."""
        for _ in range(CHUNKS):
            try:
                data = os.read(self.output.fileno(), CHUNK)
            except BlockingIOError:
                return True
            self._split(data)
            if not data:
                return False
        return True

    def close(self) -> None:
        """Lets go of the output; what a dead process left in the pipe is still written."""
        if not self.output.closed:
            self.pump()
            self.output.close()

    def why(self) -> str:
        """Returns a clause that says how the process ended, in its own words where it has some."""
        if self._last_error:
            return self._last_error
        status = self.exit_status()
        assert status is not None, "it still runs"
        if status == -signal.SIGKILL and out_of_memory_kills() > self._kills_before:
            return OUT_OF_MEMORY
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"ended with status {status}: {self._last_line}" if self._last_line else f"ended with status {status}"

    def _split(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if self._partial and (not data or len(self._partial) > LONGEST_LINE):
            lines.append(self._partial)
            self._partial = b""
        if lines:
            self._log.write(b"".join(map(self._noted, lines)))

    def _noted(self, line: bytes) -> bytes:
        """Returns a line as the log has it, and keeps what may say how the process ends."""
        text = line.decode(errors="replace").rstrip()
        if text:
            self._last_line = text
        if text.startswith("error: "):
            self._last_error = text.removeprefix("error: ")
        return f"{self.service.name:<9} | {text}\n".encode()
