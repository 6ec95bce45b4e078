"""A host without a compiler takes operators that were compiled elsewhere, and refuses those of other sources."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import NativeError
from engine.backends.native.compiling.build import build, processor, source_digest
from engine.backends.native.compiling.levels import LEVELS, runnable
from engine.backends.native.compiling.prebuilt import choose_library, digest_of
from infra.config.operators import OPERATORS_VARIABLE

ROOT = Path(__file__).resolve().parents[5]
LEAST = runnable(LEVELS, platform.machine(), processor())[-1]
PROVES = """
from engine.backends.native.library import load
from engine.backends.native.linear_layers.linear import prove
prove(load())
"""


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """The least level's library in a directory of its own."""
    directory = tmp_path / "given"
    directory.mkdir()
    return Path(shutil.copy(build(LEAST.options), directory / f"operators-{LEAST.name}.so"))


def changed(library: Path) -> str:
    """Gives a library another source digest, and returns it."""
    digest = source_digest(LEAST.options)
    other = digest[::-1]
    library.write_bytes(library.read_bytes().replace(bytes.fromhex(digest), bytes.fromhex(other)))
    return other


def without_compiler(directory: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process whose environment has nothing but these directories."""
    words = ["env", "-i", "PATH=/nonexistent", f"HOME={directory}", f"{OPERATORS_VARIABLE}={directory}"]
    return subprocess.run([*words, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_a_host_without_a_compiler_takes_given_operators(given: Path) -> None:
    result = without_compiler(given.parent, f"{PROVES}print({str(given)!r} in open('/proc/self/maps').read())")
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr
    assert list(given.parent.iterdir()) == [given]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_and_operators_a_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPERATORS_VARIABLE, str(tmp_path))
    with pytest.raises(NativeError) as refused:
        choose_library()
    assert str(refused.value).endswith(
        "there is no C compiler on the PATH (looked for cc, gcc, clang); install one, or run `./baton operators "
        "--build --out DIR` on another host and set BATON_OPERATORS to DIR"
    )


def test_operators_of_other_sources_are_refused(
    given: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a compiler a warning says so, and they are compiled."""
    other = changed(given)
    sentence = (
        f"{given} has the source digest {other}, and this version needs {source_digest(LEAST.options)}: build it again"
    )
    monkeypatch.setenv(OPERATORS_VARIABLE, str(given.parent))
    with monkeypatch.context() as without, pytest.raises(NativeError) as refused:
        without.setenv("PATH", "/nonexistent")
        choose_library()
    assert str(refused.value).startswith(f"{sentence}; there is no C compiler on the PATH")
    assert choose_library() == build()
    assert [record.getMessage() for record in caplog.records] == [
        f"{sentence}; native operators are compiled here instead"
    ]


def test_given_operators_come_before_a_compile_unless_a_target_is_asked_for(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPERATORS_VARIABLE, str(given.parent))
    assert choose_library() == given
    assert choose_library(LEAST.options) == build(LEAST.options)


def test_without_a_home_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", home)
    for name in (OPERATORS_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    sentence = "this user has no home directory to keep native operators in; set XDG_CACHE_HOME"
    with pytest.raises(NativeError, match=f"^{sentence}$"):
        choose_library()


def test_a_file_that_is_no_library_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no library")
    assert digest_of(tmp_path / "text") == ""


HASWELL = "flags : fpu avx avx2 bmi1 bmi2 f16c fma abm movbe"
SKYLAKE = f"{HASWELL} avx512f avx512bw avx512cd avx512dq avx512vl"
GENOA = f"{SKYLAKE} avx512_vnni avx512vbmi avx512_bf16"


@pytest.mark.parametrize(
    ("flags", "best"),
    [
        (HASWELL, "avx2"),
        (f"{HASWELL} avx_vnni", "avx2_vnni"),
        (SKYLAKE, "avx512"),
        (f"{SKYLAKE} avx512_vnni", "avx512_vnni"),
        (GENOA, "avx512_bf16"),
        (f"{GENOA} amx_tile amx_bf16 amx_int8", "amx"),
        (f"{GENOA} amx_tile", "avx512_bf16"),
    ],
)
def test_the_best_level_comes_first(flags: str, best: str) -> None:
    assert runnable(LEVELS, "x86_64", flags)[0].name == best
    assert runnable(LEVELS, "riscv64", flags) == []
