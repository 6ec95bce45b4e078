"""Prints an instance's log (`baton logs`), or the lines of one service in it, and new lines with `--follow`."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

from msgspec import Meta, Struct

from contracts.errors import BatonError
from contracts.kinds import Count
from infra.cli import parse
from launcher.instance.held_file import is_held
from launcher.instance.instances import recorded
from launcher.instance.local_instance import local_instance
from launcher.instance.service_lines import is_of
from launcher.instance.state_directory import state_directory
from launcher.options import LocalURL
from launcher.refusal import refusing
from launcher.words import INTERRUPTED_STATUS

FOLLOW_PERIOD_S = 0.2
READ_BYTES = 1 << 16


class LogsConfig(Struct, frozen=True, kw_only=True):
    """Prints the log of the running instance, or of the last one: ./baton logs [SERVICE] [options].

    Example: ./baton logs decode-0 --follow
    """

    url: LocalURL = ""
    lines: Annotated[Count, Meta(description="last lines to print; 0: all that are kept")] = 200
    follow: Annotated[bool, Meta(description="print new lines until the instance ends, or Ctrl-C")] = False


@refusing
def logs(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 printed, 2 bad input or no log."""
    service, options = (arguments[0], arguments[1:]) if arguments and arguments[0][:1] != "-" else ("", arguments)
    config = parse(LogsConfig, options, "baton logs")
    log = _log(config.url)
    out = sys.stdout.buffer
    with log.open("rb") as current:
        last = deque[bytes](_lines(_full_files(log), current, service), maxlen=config.lines or None)
        out.writelines(last)
        out.flush()
        if not last and service:
            print(f"no lines of {service!r} in {log}", file=sys.stderr)
        try:
            for line in followed(log, current, lambda: is_held(log)) if config.follow else ():
                if _is_of_service(line, service):
                    out.write(line)
                    out.flush()
        except KeyboardInterrupt:
            return INTERRUPTED_STATUS
    return 0


def followed(log: Path, file: BinaryIO, lives: Callable[[], bool]) -> Iterator[bytes]:
    """Yields the lines that are added to `log`, of which `file` is open, until its writer no longer `lives`.

    Closes `file` at the end, and at a rotation, after which it reads on in the new file.
    """
    rest = b""
    try:
        while True:
            # Both are asked first: what is written until then is in `data`, or in the next read.
            alive, is_full = lives(), _replaced(log, file)
            data = file.read(READ_BYTES)
            *lines, rest = (rest + data).split(b"\n")
            yield from (line + b"\n" for line in lines)
            if data:
                continue
            if is_full:
                file.close()
                file = log.open("rb")
            elif not alive:
                return
            else:
                time.sleep(FOLLOW_PERIOD_S)
    finally:
        file.close()


def _replaced(log: Path, file: BinaryIO) -> bool:
    """Returns whether the file that was read to its end has become `….log.1`."""
    return log.exists() and not Path(f"/dev/fd/{file.fileno()}").samefile(log)


def _log(url: str) -> Path:
    """Returns the newest log of the instance, or without a running instance of the last one. Raises `BatonError`."""
    if url or recorded():
        return Path(local_instance(url).log)
    found = sorted((state_directory() / "logs").glob("*.log"))
    if not found:
        raise BatonError(f"there is no log in {state_directory() / 'logs'}; ./baton up writes one")
    return found[-1]


def _full_files(log: Path) -> list[Path]:
    """Returns the files that were full, the oldest first."""
    full = [path for path in log.parent.glob(f"{log.name}.*") if path.suffix[1:].isdecimal()]
    return sorted(full, key=lambda path: -int(path.suffix[1:]))


def _lines(full: Sequence[Path], current: BinaryIO, service: str) -> Iterator[bytes]:
    for path in full:
        with path.open("rb") as file:
            yield from (line for line in file if _is_of_service(line, service))
    yield from (line for line in current if _is_of_service(line, service))


def _is_of_service(line: bytes, service: str) -> bool:
    """Returns whether a line is the service's, or of one of its processes: `decode` is `decode-0` and `decode-1`."""
    return not service or is_of(line, service)
