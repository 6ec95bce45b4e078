"""Reads the Dockerfile, checks it by rules, and runs its steps as far as they run without Docker.

    python -m tests.deployment.image [EXTRA ...]

compiles the operators as the first stage does, from the files that it copies alone, and has pip resolve the packages of
the second stage for the base image's Python; wheels only, since the image has no compiler. That takes minutes, and the
package index. The rules are those of hadolint that fit this file, by its numbers (https://github.com/hadolint/hadolint).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from msgspec import Struct

from launcher.options import ROOT

DOCKERFILE = ROOT / "Dockerfile"


class Instruction(Struct, frozen=True):
    """One instruction of a Dockerfile, its continued lines joined."""

    word: str
    argument: str
    stage: int  # -1 before the first FROM

    @property
    def paths(self) -> list[str]:
        """Returns sources and target of a COPY, without its options."""
        return [word for word in self.argument.split() if not word.startswith("--")]


def instructions(text: str) -> list[Instruction]:
    joined = re.sub(r"\\\n(?:[ \t]*#[^\n]*\n)*", " ", text)
    found: list[Instruction] = []
    for line in joined.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            word, _, argument = line.strip().partition(" ")
            stage = (found[-1].stage if found else -1) + (word.upper() == "FROM")
            found.append(Instruction(word.upper(), argument.strip(), stage))
    return found


def problems(text: str) -> Iterator[str]:
    """Yields what the rules find."""
    steps = instructions(text)
    stages = [step.argument.split() for step in steps if step.word == "FROM"]
    names = {words[2] for words in stages if len(words) == 3}
    for step in steps:
        for number, finds in RULES.items():
            if finds(step):
                yield f"{number}: {step.word} {step.argument[:60]}"
        if step.word == "COPY" and (source := re.match(r"--from=(\S+)", step.argument)) and source[1] not in names:
            yield f"DL3022: no stage is called {source[1]}"
    last = [step for step in steps if step.stage == len(stages) - 1]
    users = [step.argument for step in last if step.word == "USER"]
    if not users or users[-1] in ("root", "0"):
        yield "DL3002: the last user is root"
    for stage in range(len(stages)):
        own = [step for step in steps if step.stage == stage]
        places = [at for at, step in enumerate(own) if step.word == "WORKDIR"]
        copies = [at for at, step in enumerate(own) if step.word == "COPY" and not step.paths[-1].startswith("/")]
        if copies and (not places or places[0] > copies[0]):
            yield "DL3045: a copy to a relative path before WORKDIR"
        installs = any(step.word == "RUN" and "pip install" in step.argument for step in own)
        if installs and not any(step.word == "ENV" and "PIP_NO_CACHE_DIR=1" in step.argument for step in own):
            yield "DL3042: pip keeps its cache"


def _shell_fails(script: str) -> bool:
    return subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False).returncode != 0


def _no_list(argument: str) -> bool:
    try:
        return not isinstance(json.loads(argument), list)
    except ValueError:
        return True


RULES: dict[str, Callable[[Instruction], bool]] = {
    "DL1000": lambda step: step.word == "RUN" and _shell_fails(step.argument),
    "DL3000": lambda step: step.word == "WORKDIR" and not step.argument.startswith("/"),
    "DL3004": lambda step: step.word == "RUN" and "sudo " in step.argument,
    "DL3006": lambda step: step.word == "FROM" and ":" not in step.argument.split()[0],
    "DL3007": lambda step: step.word == "FROM" and step.argument.split()[0].endswith(":latest"),
    "DL3009": lambda step: "apt-get install" in step.argument and "rm -rf /var/lib/apt/lists/*" not in step.argument,
    "DL3013": lambda step: (
        step.word == "RUN" and any("-c " not in part for part in step.argument.split("pip install")[1:])
    ),
    "DL3014": lambda step: bool(re.search(r"apt-get install (?!.*-y)", step.argument)),
    "DL3015": lambda step: "apt-get install" in step.argument and "--no-install-recommends" not in step.argument,
    "DL3020": lambda step: step.word == "ADD",
    "DL3025": lambda step: step.word in ("CMD", "ENTRYPOINT") and _no_list(step.argument),
    "DL4000": lambda step: step.word == "MAINTAINER",
    "DL4006": lambda step: step.word == "RUN" and bool(re.search(r"[^|]\|[^|]", step.argument)),
}
"""By hadolint's number: whether an instruction breaks the rule."""


def step_of(words: str) -> Instruction:
    """Returns the first RUN with these words."""
    steps = instructions(DOCKERFILE.read_text())
    return next(step for step in steps if step.word == "RUN" and words in step.argument)


def copied(before: Instruction, target: Path) -> None:
    """Copies into `target` what a stage copies before a step, as Docker would, from what .dockerignore leaves."""
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    steps = instructions(DOCKERFILE.read_text())
    for step in steps[: steps.index(before)]:
        if step.stage != before.stage or step.word != "COPY" or "--from=" in step.argument:
            continue
        *sources, place = step.paths
        for source in kept if sources == ["."] else sources:
            if not any(fnmatch(source.split("/")[0], each) for each in kept):
                raise FileNotFoundError(f"{source} is not sent to the build (.dockerignore)")
            into = target / place / (Path(source).name if place.endswith("/") or sources == ["."] else "")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            else:
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / source, into)


def python_of_base() -> str:
    """Returns the version of the base image's Python, such as 3.13."""
    found = re.search(r"^FROM python:(\d+\.\d+)-slim", DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None, "the image is not made of Python's"
    return found[1]


def main(extras: Sequence[str]) -> None:
    sound = list(problems(DOCKERFILE.read_text()))
    for each in sound:
        print(each)
    with tempfile.TemporaryDirectory() as made:
        first, second, out = (Path(made) / name for name in ("operators", "app", "out"))
        build, install = step_of("operators --build"), step_of("installing.requirements")
        copied(build, first)
        subprocess.run(
            [sys.executable, *build.argument.replace("/operators", str(out)).split()[1:]],
            cwd=first,
            env=os.environ | {"PYTHONPATH": str(first)},
            check=True,
        )
        print(f"{len(list(out.iterdir()))} files of operators")
        copied(install, second)
        asked = [sys.executable, "-m", "launcher.installing.requirements", *extras]
        wanted = subprocess.run(asked, cwd=second, text=True, stdout=subprocess.PIPE, check=True).stdout.split("\n")
        pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--target", made]
        only = ["--python-version", python_of_base(), "--only-binary=:all:", "-c", "constraints.txt"]
        subprocess.run([*pip, *only, *filter(None, wanted)], cwd=second, check=True)
        print(f"{len(wanted)} packages resolve for Python {python_of_base()}")
    if sound:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
