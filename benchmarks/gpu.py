"""Runs everything that needs a GPU in one go, tests, tuning, tables, engines, on a machine that is lent for minutes.

    python -m benchmarks.gpu --out DIR [--only PART …] [--again] [--minutes 9.5]

Needs what `pyproject.toml` names for the engine and its tests (torch with CUDA, triton, transformers, safetensors,
msgspec, pytest, hypothesis), and installs nothing. Parts run one after the other, each in a process of its own and
within its time; one that fails does not stop the others. `results.json` keeps what is done, so a second call goes on
with what is not; `results.md` has the tables, `log.txt` all that was said, `tuned.json` the kernels' measured configs.
The status is 1 if a part has failed, or has not run for lack of time.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TUNED = ROOT / "kernels" / "tuned.json"
MINUTES = 9.5
LEAST_SECONDS = 10.0
"""A part that is left less is not begun."""
SIDE_BY_SIDE = ("-n", "8") if find_spec("xdist") else ()
"""Tests spend their time in the compiler, which is one thread's."""
PYTEST = ("-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT), "-q", "-p", "no:cacheprovider", *SIDE_BY_SIDE)
"""Without this project's settings: they ask for plugins that these tests do without."""


@dataclass(frozen=True)
class Part:
    """Describes a command of this Python's; `{work}` in it is a directory for `result`, JSON, and `picture`."""

    name: str
    command: tuple[str, ...]
    seconds: float
    result: str = ""
    picture: str = ""


@dataclass
class Outcome:
    """Holds how a part went: `passed`, `failed` or `out of time`."""

    status: str
    seconds: float
    last_line: str
    tables: list[str] = field(default_factory=list)
    result: Any = None


def _engine(shape: str, seconds: float) -> Part:
    files = ("--json", "{work}/result.json", "--plot", f"{{work}}/{shape}.svg")
    command = ("-m", "benchmarks.engine", "--device", "cuda", "--shape", shape, *files)
    return Part(shape, command, seconds, "result.json", f"{shape}.svg")


KERNELS = ("-m", "benchmarks.kernels")
PARTS = (
    Part(
        "tests",
        (*PYTEST, "tests/kernels", "tests/benchmarks/test_device_time.py", "tests/benchmarks/test_idle.py"),
        100,
    ),
    Part("golden", (*PYTEST, "-m", "gpu", "tests/engine"), 60),
    Part("tune", (*KERNELS, "--tune", "--seconds", "100"), 125),
    Part("kernels", (*KERNELS, "--seconds", "115", "--json", "{work}/result.json"), 140, "result.json"),
    _engine("llama-3.1-8b", 85),
    _engine("qwen3-0.6b", 55),
)


def run(part: Part, seconds: float, out: Path) -> Outcome:
    """Runs a part, and ends it and all that it has started when its time is over."""
    with TemporaryDirectory() as directory:
        work, said = Path(directory), Path(directory) / "said.txt"
        command = [sys.executable, *(each.replace("{work}", str(work)) for each in part.command)]
        begin = time.monotonic()
        status = _within(command, said, seconds)
        spent = time.monotonic() - begin
        text = said.read_text(errors="replace")
        with (out / "log.txt").open("a") as log:
            log.write(f"==== {part.name}: {' '.join(command)}\n{text}\n==== {status} after {spent:.0f} s\n")
        if part.picture and (work / part.picture).exists():
            shutil.copy(work / part.picture, out)
        result = work / part.result
        lines = [line for line in text.splitlines() if line.strip()]
        return Outcome(
            status,
            round(spent, 1),
            lines[-1] if lines else "it said nothing",
            [line for line in lines if line.startswith("|")],
            json.loads(result.read_text()) if part.result and result.exists() else None,
        )


def _within(command: Sequence[str], said: Path, seconds: float) -> str:
    with said.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *_python_path()]), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        try:
            return "failed" if process.wait(seconds) else "passed"
        except subprocess.TimeoutExpired:
            return "out of time"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _python_path() -> list[str]:
    """Returns where this machine has packages that were brought along."""
    return [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]


def load(out: Path) -> dict[str, Outcome]:
    """Reads what earlier calls have done."""
    place = out / "results.json"
    return {name: Outcome(**kept) for name, kept in json.loads(place.read_text()).items()} if place.exists() else {}


def save(out: Path, outcomes: dict[str, Outcome]) -> None:
    """Writes the outcomes as JSON, and as a page of tables."""
    (out / "results.json").write_text(
        json.dumps({name: asdict(each) for name, each in outcomes.items()}, indent=1) + "\n"
    )
    page = ["# On the GPU", ""]
    for name, outcome in outcomes.items():
        page += [f"## {name}: {outcome.status}, {outcome.seconds:.0f} s", ""]
        page += [*_tables(outcome.tables), ""] if outcome.tables else [outcome.last_line, ""]
        if isinstance(outcome.result, dict) and "versions" in outcome.result:
            page += [f"{outcome.result['versions']}; limits {outcome.result['limits']}", ""]
    (out / "results.md").write_text("\n".join(page))


def _tables(lines: Sequence[str]) -> list[str]:
    """Returns the lines of tables, with an empty one before each head: the line before the one with dashes."""
    separated: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        separated += ["", line] if following.startswith("| ---") and separated else [line]
    return separated


def main(parts: Sequence[Part] = PARTS) -> int:
    """Runs what is not done; returns 1 if something has failed or has not run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results go, and are looked for")
    parser.add_argument("--only", action="append", choices=[part.name for part in parts], help="may be given again")
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of it")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * given.minutes
    outcomes = load(given.out)
    wanted = [part for part in parts if part.name in (given.only or [part.name])]
    for part in wanted:
        before = outcomes.get(part.name)
        if before is not None and before.status == "passed" and not (given.again or given.only):
            print(f"{part.name}: passed before")
            continue
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            print(f"{part.name}: no time is left", flush=True)
            continue
        outcomes[part.name] = outcome = run(part, min(part.seconds, left), given.out)
        save(given.out, outcomes)
        if TUNED.exists():
            shutil.copy(TUNED, given.out / "tuned.json")
        print(f"{part.name}: {outcome.status} after {outcome.seconds:.0f} s: {outcome.last_line}", flush=True)
    print(f"{given.out / 'results.md'} has the tables")
    return int(any(part.name not in outcomes or outcomes[part.name].status != "passed" for part in wanted))


if __name__ == "__main__":
    sys.exit(main())
