"""The Dockerfile keeps its rules, and each of its steps has what it needs of the files copied before it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from packaging.specifiers import SpecifierSet

from launcher.installing.requirements import base_name, pins, requirements
from launcher.options import ROOT
from tests.deployment.image import DOCKERFILE, copied, problems, python_of_base, step_of
from tests.waiting import DEADLINE_S

SOUND = """FROM python:3.13-slim AS made
WORKDIR /app
ENV PIP_NO_CACHE_DIR=1
RUN apt-get update && apt-get install -y --no-install-recommends gcc \\
    # for the operators
    && rm -rf /var/lib/apt/lists/*
COPY a b
RUN pip install -c constraints.txt a
USER me
CMD ["python"]
"""
BROKEN = {
    "DL1000": ("apt-get update", "(apt-get update"),
    "DL3000": ("/app", "app"),
    "DL3002": ("USER me", "USER root"),
    "DL3004": ("RUN pip", "RUN sudo pip"),
    "DL3006": (":3.13-slim", ""),
    "DL3007": (":3.13-slim", ":latest"),
    "DL3009": ("&& rm -rf /var/lib/apt/lists/*", ""),
    "DL3013": ("-c constraints.txt", ""),
    "DL3014": ("-y ", ""),
    "DL3015": ("--no-install-recommends", ""),
    "DL3020": ("COPY", "ADD"),
    "DL3022": ("COPY a", "COPY --from=other a"),
    "DL3025": ('["python"]', "python"),
    "DL3042": ("PIP_NO_CACHE_DIR=1", "A=1"),
    "DL3045": ("WORKDIR /app", ""),
    "DL4000": ("USER me", "MAINTAINER me\nUSER me"),
    "DL4006": ("RUN pip", "RUN yes | pip"),
}


def test_the_image_keeps_the_rules() -> None:
    assert list(problems(DOCKERFILE.read_text())) == []
    assert list(problems(SOUND)) == []


@pytest.mark.parametrize("number", BROKEN)
def test_each_rule_finds_what_breaks_it(number: str) -> None:
    assert any(each.startswith(number) for each in problems(SOUND.replace(*BROKEN[number])))


def test_operators_are_compiled_from_what_their_stage_has(tmp_path: Path) -> None:
    """With no package but msgspec, which the stage installs."""
    copied(step_of("operators --build"), tmp_path / "app")
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    command = [sys.executable, "-S", "-m", "engine.backends.native.compiling.operators", "--help"]
    run = subprocess.run(
        command,
        cwd=tmp_path / "app",
        env={"PYTHONPATH": f"{tmp_path / 'app'}:{packages}"},
        text=True,
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert run.returncode == 0 and "--level" in run.stdout, run.stderr


def test_packages_are_named_by_the_files_that_their_step_has(tmp_path: Path) -> None:
    """Python's own library alone computes them, and the constraints pin each."""
    copied(step_of("installing.requirements"), tmp_path / "app")
    extras = ["otel", "ray"]
    command = [sys.executable, "-S", "-m", "launcher.installing.requirements", *extras]
    told = subprocess.run(
        command, cwd=tmp_path / "app", text=True, capture_output=True, check=True, timeout=DEADLINE_S
    ).stdout.split("\n")
    assert [*filter(None, told)] == requirements(ROOT, extras)
    pinned = {name.lower().replace("_", "-").split("[")[0] for name in pins(ROOT)}
    assert [each for each in told if each and base_name(each).replace("_", "-") not in pinned] == []


def test_the_images_python_is_one_that_baton_runs_on() -> None:
    served = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert SpecifierSet(served).contains(python_of_base())
