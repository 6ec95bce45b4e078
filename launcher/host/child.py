"""Runs a service as a child process that ends with the launcher, and writes its output to the log."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from contracts.kinds import LogFormat
from infra.memory.host_memory import out_of_memory_kills
from infra.process.dying import die_with
from launcher.host.process import Process
from launcher.instance.log_file import Log
from launcher.instance.service_lines import ERROR_PREFIX, ServiceLines

PIPE_BYTES = 65536  # capacity of a pipe
MAX_READS_PER_PUMP = 16  # so that a child with much output does not block the loop
OUT_OF_MEMORY_HINT = (
    "killed by SIGKILL, and the kernel has killed for lack of memory meanwhile: --quantization int4, a smaller"
    " --kv-memory, --model or number of workers, or a higher memory limit helps"
)
MAX_LINE_BYTES = 1 << 20  # a longer line is split in the log


class Child:
    """One process of a service. The launcher's loop calls `pump` when there is output to read.

    All services are in the launcher's session. With `sched_autogroup_enabled` Linux divides cores among sessions first:
    a gateway in a session of its own waited up to 300 ms for a core beside a session of busy workers, at any nice
    value.
    """

    def __init__(
        self, service: Process, environment: Mapping[str, str], directory: Path, log: Log, form: LogFormat = "text"
    ) -> None:
        self.service = service
        self._log = log
        self._lines = ServiceLines(service.name, form)
        self._kills_before = out_of_memory_kills()
        self._partial = b""
        self._last_line = ""
        self._last_error = ""
        if service.status_file is not None:
            service.status_file.unlink(missing_ok=True)  # of an earlier process
        self._process = subprocess.Popen(
            service.command,
            cwd=directory,
            env={**environment, **service.settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C reaches only the launcher, which stops all services in order
            preexec_fn=die_with(os.getpid()),
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        os.set_blocking(self.output.fileno(), False)

    @property
    def pid(self) -> int:
        """The process id, which is also the id of the process group."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """Returns None while the process runs, and a negative number after a signal."""
        return self._process.poll()

    def terminate(self) -> None:
        """Sends SIGTERM, and SIGCONT: a stopped process would not handle SIGTERM."""
        if self.exit_status() is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # the group has ended
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def pump(self) -> bool:
        """Copies output to the log. Returns False at the end of the output."""
        for _ in range(MAX_READS_PER_PUMP):
            try:
                data = os.read(self.output.fileno(), PIPE_BYTES)
            except BlockingIOError:
                return True
            self._split(data)
            if not data:
                return False
        return True

    def close(self) -> None:
        """Copies the remaining output from the pipe, and closes it."""
        if not self.output.closed:
            self.pump()
            self.output.close()

    def why(self) -> str:
        """Returns a clause about how the process ended: its last line with `error:`, if it wrote such a line."""
        if self._last_error:
            return self._last_error
        status = self.exit_status()
        assert status is not None, "it still runs"
        if status == -signal.SIGKILL and out_of_memory_kills() > self._kills_before:
            return OUT_OF_MEMORY_HINT
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"ended with status {status}: {self._last_line}" if self._last_line else f"ended with status {status}"

    def _split(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        if self._partial and (not data or len(self._partial) > MAX_LINE_BYTES):
            lines.append(self._partial)
            self._partial = b""
        if lines:
            self._log.write(b"".join(map(self._noted, lines)))

    def _noted(self, line: bytes) -> bytes:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._last_line = text
        if text.startswith(ERROR_PREFIX):
            self._last_error = text.removeprefix(ERROR_PREFIX)
        return self._lines.formed(text)
