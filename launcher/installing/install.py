"""Makes `.venv` and installs the dependencies of pyproject.toml, in the versions of constraints.txt.

Started by `./baton` with the system's Python before anything is installed, so it uses the standard library only. The
stamp is written last, so the next start resumes an interrupted installation, and installs changed pins.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from launcher.installing.removable import owned_by_another, reason_to_keep
from launcher.installing.requirements import base_name, pins, requirements, stamp
from launcher.installing.torch_source import INDEX_VARIABLE, choose, has_nvidia_driver, pip_versions
from launcher.ray_process import RAY_EXTRA, needs_ray
from launcher.stages import StageDisplay
from launcher.words import INTERRUPTED_STATUS, answer

TRACES_EXTRA = "otel"
POLL_PERIOD_S = 0.2
UNUSED_SOURCES = "site-packages/(.+/)?tests?/"
"""Regular expression of the paths of packages' own tests, a fifth of what compiles and never imported."""
WITHOUT_SET_UP = ("status", "logs", "restart", "down")
"""Commands about a running instance: without an installation there is none."""
ROOT = Path(__file__).resolve().parents[2]


class InstallFailed(Exception):
    """The virtual environment could not be made or filled."""


def main(arguments: Sequence[str]) -> int:
    """Completes `.venv` and becomes `python -m launcher ARGUMENTS` in it; returns an exit status only on failure.

    Unknown words are refused first. Commands about a running instance install nothing.
    """
    if answered := answer(arguments, ROOT):
        exit_status, text = answered
        print(text, end="", file=sys.stderr if exit_status else sys.stdout)
        return exit_status
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    python = str(ROOT / ".venv" / "bin" / "python")
    try:
        if arguments[0] not in WITHOUT_SET_UP or needs_ray(arguments):
            install(ROOT, extras_of(arguments, os.environ), os.environ)
        elif not (ROOT / ".venv" / "stamp").is_file():
            raise InstallFailed(f"nothing is installed in {ROOT}/.venv, so nothing of it runs; ./baton up does both")
        return _become(python, [python, "-P", "-m", "launcher", *arguments])
    except InstallFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the next start resumes the installation", file=sys.stderr)
        return INTERRUPTED_STATUS


def extras_of(arguments: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Returns the extras of pyproject.toml that a command needs, by its options and the environment (`settings`)."""
    if arguments[0] == "test":
        return ["test"]
    traces = any(word.partition("=")[0] == "--trace-endpoint" for word in arguments)
    traces = traces or bool(settings.get("BATON_TRACE_ENDPOINT"))
    return [*([RAY_EXTRA] if needs_ray(arguments) else []), *([TRACES_EXTRA] if traces else [])]


def _become(program: str, words: list[str]) -> NoReturn:
    """Raises `InstallFailed` where this user may not. Ctrl-C waits until the launcher's imports can no longer break."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.execv(program, words)
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        why = f"{error.strerror}; a checkout of your own has a .venv of its own"
        raise InstallFailed(f"{program} cannot be run: {why}") from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def install(root: Path, extras: Sequence[str], settings: Mapping[str, str]) -> None:
    """Brings `.venv` up to date. Raises `InstallFailed`. Two starts at once: the second waits for the first."""
    venv = root / ".venv"
    nvidia = has_nvidia_driver()
    installed = [*extras, "cuda"] if nvidia else list(extras)
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = stamp(root, [version, settings.get(INDEX_VARIABLE, ""), str(nvidia)])
    # One stamp for each set of extras; the packages without extras are part of every set.
    stamps = [venv / "-".join(["stamp", *extras]), venv / "stamp"]
    if _holds(stamps[0], wanted):
        return
    stages = StageDisplay(sys.stderr)  # what a command prints may go into a file
    with _alone(root, stages) as lock:
        if _holds(stamps[0], wanted):
            return
        if venv.exists() and (sentence := owned_by_another(venv, os.geteuid())):
            raise InstallFailed(sentence)
        _make_venv(venv, version, stages, lock)
        python = str(venv / "bin" / "python")
        log = venv / "install.log"
        log.write_bytes(b"")
        started = time.monotonic()
        pip = [
            python,
            "-m",
            "pip",
            "install",
            "--no-input",
            "--disable-pip-version-check",
            "--no-compile",  # pip would use a single core
            "-c",
            str(root / "constraints.txt"),
        ]
        pinned = pins(root)
        _take_pip(pip, pinned, log, lock)
        source = choose(pinned["torch"], settings, nvidia, pip_versions(python))
        stages.say(f"taking {source.why}")
        # torch alone first, so that its index serves torch only and every other package comes from the configured one.
        index = ["--index-url", source.index] if source.index else []
        _pip([*pip, "--no-deps", *index, f"torch=={pinned['torch']}"], log, stages, lock, "installing PyTorch")
        packages = [wish for wish in requirements(root, installed) if base_name(wish) != "torch"]
        expected = len(pinned) - (0 if extras else len(requirements(root, ["test"])) - len(requirements(root, [])))
        _pip([*pip, "torch", *packages], log, stages, lock, "installing packages", expected)
        _compile(python, log, stages, lock)
        for path in stamps:
            path.write_text(wanted)
        stages.show("installed", f"in {time.monotonic() - started:.0f} s")
        stages.settle()


def _holds(path: Path, content: str) -> bool:
    return path.is_file() and path.read_text() == content


@contextmanager
def _alone(root: Path, stages: StageDisplay) -> Iterator[int]:
    """Locks this folder against other set-ups, and yields the lock's descriptor.

    The lock ends with the last process that holds the descriptor. pip holds it too, so that the next set-up waits for a
    pip that outlives a killed set-up.
    """
    folder = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stages.show("set-up", "waiting for another set-up of this folder")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(folder)


def _make_venv(venv: Path, version: str, stages: StageDisplay, lock: int) -> None:
    """Makes `.venv`, unless its `python-version` is `version`; an incomplete or older `.venv` is replaced.

    Raises `InstallFailed` before any file is removed if the old `.venv` must stay.
    """
    made = venv / "python-version"
    if _holds(made, version):
        return
    if os.path.lexists(venv):
        if sentence := reason_to_keep(venv):
            raise InstallFailed(sentence)
        try:
            shutil.rmtree(venv)
        except OSError as error:
            raise InstallFailed(f"{venv} cannot be removed: {error}") from None
    stages.show("set-up", f"making .venv with Python {version}")
    # The base interpreter: this process may run from the `.venv` that was just removed.
    base = getattr(sys, "_base_executable", sys.executable)
    with tempfile.TemporaryFile() as output:
        if _run([base, "-m", "venv", str(venv)], output, lock, lambda: None) != 0:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            raise InstallFailed(f"{base} -m venv failed: {lines[-1] if lines else 'it said nothing'}")
    made.write_text(version)


def _take_pip(pip: Sequence[str], pinned: Mapping[str, str], log: Path, lock: int) -> None:
    """Installs the pinned pip, which resolves in a third of the time of the pip that Python 3.11 brings.

    Where an index has none, the pip of `.venv` stays.
    """
    if "pip" in pinned:
        with log.open("ab") as out:
            _run([*pip, f"pip=={pinned['pip']}"], out, lock, lambda: None)


def _pip(command: Sequence[str], log: Path, stages: StageDisplay, lock: int, stage: str, expected: int = 0) -> None:
    """Runs pip with its output in the log, and shows progress.

    `expected`: number of packages; 0 if it says nothing about the time left.
    """
    started = time.monotonic()
    with log.open("ab") as out:
        offset = out.tell()
        progress = _progress(log, offset, expected)

        def show() -> None:
            text, percent = progress()
            stages.show(stage, text, percent, f"({time.monotonic() - started:.0f} s)")

        status = _run(command, out, lock, show)
    if status != 0:
        stages.settle()
        raise InstallFailed(f"{stage} failed: {_last_error(log, offset)} (the whole log: {log})")
    stages.show(stage, "done")


def _compile(python: str, log: Path, stages: StageDisplay, lock: int) -> None:
    """Compiles all packages but their tests on all cores. Files that are no valid Python, such as templates, stay."""
    stages.show("compiling", "all packages")
    (site,) = log.parent.glob("lib/python3*/site-packages")
    with log.open("ab") as out:
        _run([python, "-m", "compileall", "-qq", "-j", "0", "-x", UNUSED_SOURCES, str(site)], out, lock, lambda: None)
    stages.show("compiling", "done")


def _run(command: Sequence[str], output: IO[bytes], lock: int, show: Callable[[], None]) -> int:
    """Runs a command and returns its exit status. The command's whole session ends with this process."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=[lock],
        start_new_session=True,
    )
    try:
        while process.poll() is None:
            show()
            time.sleep(POLL_PERIOD_S)
        return process.returncode
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _progress(log: Path, offset: int, expected: int) -> Callable[[], tuple[str, int | None]]:
    (site,) = log.parent.glob("lib/python3*/site-packages")
    before = len(list(site.glob("*.dist-info")))

    def percent(done: int) -> int | None:
        return min(99, 100 * done // expected) if expected else None

    def progress() -> tuple[str, int | None]:
        with log.open("rb") as lines:
            lines.seek(offset)
            text = lines.read()
        if b"Installing collected packages" in text:
            unpacked = len(list(site.glob("*.dist-info"))) - before
            return "unpacking", percent(unpacked)
        found = text.count(b"\nCollecting ") + text.count(b"\nProcessing ")
        return "downloading", percent(found)

    return progress


def _last_error(log: Path, offset: int) -> str:
    with log.open("rb") as lines:
        lines.seek(offset)
        text = lines.read().decode(errors="replace").splitlines()
    # pip ends a conflict with a link to its manual; the line before names the conflict.
    errors = [line for line in text if line.startswith("ERROR:") and "ResolutionImpossible" not in line]
    return (errors or text or ["pip said nothing"])[-1].removeprefix("ERROR:").strip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
