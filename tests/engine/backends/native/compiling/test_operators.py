"""`baton operators` lists and compiles, as its own process; small sources take the place of the operators'."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.backends.native.compiling.build import processor
from engine.backends.native.compiling.levels import LEVELS, runnable

ROOT = Path(__file__).resolve().parents[5]
MACHINE_LEVELS = [level for level in LEVELS if level.machine == platform.machine()]
HERE = runnable(LEVELS, platform.machine(), processor())
Baton = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def baton(tmp_path: Path) -> Baton:
    """Runs the command with a copy of the native operators that has one function."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "engine", copy / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    for source in (copy / "engine/backends/native/csrc").iterdir():
        source.unlink()
    (copy / "engine/backends/native/csrc/one.c").write_text(
        '__attribute__((visibility("default"))) int one(void) { return 1; }\n'
    )

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        usual = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        command = [sys.executable, "-m", "launcher", "operators", *words]
        given = {**usual, "PYTHONPATH": f"{copy}:{ROOT}", **environment}
        return subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)

    return run


def test_it_compiles_all_levels_of_the_compilers_machine_and_lists_them(baton: Baton, tmp_path: Path) -> None:
    built = baton("--build", "--level", "all", "--out", "libraries")
    assert (built.returncode, built.stderr) == (0, "")
    libraries = [tmp_path / "libraries" / f"operators-{level.name}.so" for level in MACHINE_LEVELS]
    lines = built.stdout.splitlines()
    assert [line.partition(": source digest ")[0] for line in lines] == [str(library) for library in libraries]
    assert sorted((tmp_path / "libraries").iterdir()) == sorted(libraries)
    assert ctypes.CDLL(str(libraries[-1])).one() == 1
    listed = baton(BATON_OPERATORS=str(tmp_path / "libraries")).stdout.splitlines()
    for level, line in zip(LEVELS, listed, strict=True):
        assert line.split()[:2] == [level.name, level.machine]
        assert ("does not run here" in line) == (level not in HERE)
        assert line.endswith(tuple(lines) if level in MACHINE_LEVELS else f"operators-{level.name}.so")
    libraries[-1].unlink()  # this process has mapped the file
    libraries[-1].write_text("no library")
    assert "source digest missing (refused: this version needs " in baton("--out", "libraries").stdout


def test_without_words_it_compiles_this_hosts_best_level_where_a_start_looks(baton: Baton, tmp_path: Path) -> None:
    assert baton("--build").returncode == 0
    (library,) = (tmp_path / ".cache/baton/operators").iterdir()
    assert library.name == f"operators-{HERE[0].name}.so"
    assert baton("--build", BATON_OPERATORS=str(tmp_path / "set")).returncode == 0
    assert [each.name for each in (tmp_path / "set").iterdir()] == [library.name]


def test_what_cannot_be_done_is_one_sentence(baton: Baton, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    levels = f"{platform.machine()}: {', '.join(level.name for level in MACHINE_LEVELS)}"
    for words, environment, sentence in (
        (("--level", "sse"), {}, f"--level: 'sse': levels of this compiler, which compiles for {levels}; or all\n"),
        ((), {"CC": "none"}, "there is no C compiler on the PATH (looked for none); install one"),
        (("--out", "file"), {}, f"the native operators cannot be written to {tmp_path / 'file'}: "),
    ):
        result = baton("--build", *words, **environment)
        assert result.returncode == 2 and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
        assert sentence in result.stderr
