"""Compiled once, into the cache, whoever starts first; what fails is one sentence. Needs a C compiler."""

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contracts.errors import NativeError
from engine.backends.native.compiling import build as module
from engine.backends.native.compiling.build import build


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own, and two small sources in place of the operators'."""
    sources = tmp_path / "sources" / "csrc"
    sources.mkdir(parents=True)
    (sources / "shared.h").write_text("int one(void);\n")
    (sources / "one.c").write_text('#include "shared.h"\nint one(void) { return 1; }\n')
    (sources / "two.c").write_text(
        '#include "shared.h"\n__attribute__((visibility("default"))) int two(void) { return 2 * one(); }\n'
    )
    monkeypatch.setattr(module, "__file__", str(sources.parent / "compiling" / "build.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "baton"


def test_a_second_start_compiles_nothing(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build()
    assert ctypes.CDLL(str(first)).two() == 2
    written = first.stat().st_mtime_ns
    assert build() == first and first.stat().st_mtime_ns == written
    assert list(empty_cache.iterdir()) == [first]
    monkeypatch.setattr(module, "COMPILER_FLAGS", (*module.COMPILER_FLAGS, "-DOTHER"))
    other = build()
    monkeypatch.setattr(module, "processor", lambda: "another")
    elsewhere = build()
    (tmp_path / "sources" / "csrc" / "shared.h").write_text("int one(void);\nint two(void);\n")
    assert len({first, other, elsewhere, build()} & set(empty_cache.iterdir())) == 4


def test_of_starts_at_once_one_compiles(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "runs"
    compiler = tmp_path / "noting"
    compiler.write_text(f'#!/bin/sh\necho "$@" >>{noted}\nexec cc "$@"\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: build(), range(4)))
    assert list(empty_cache.iterdir()) == [*found]
    assert noted.read_text().count(" -shared ") == 1


def test_a_start_that_waits_too_long_compiles_beside_the_others(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TURN_WAIT_S", 0.0)
    empty_cache.mkdir()
    held = os.open(empty_cache, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert build().exists()
    os.close(held)


def test_a_compiler_that_fails_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = tmp_path / "fails"
    fails.write_text(
        "#!/bin/sh\n[ $1 = --version ] && exit 0\nprintf 'In file x:\\nx.c:3: error: no\\nmore\\n' >&2; exit 1\n"
    )
    fails.chmod(0o700)
    monkeypatch.setenv("CC", str(fails))
    with pytest.raises(NativeError, match=r"fails fails: x.c:3: error: no$"):
        build()
    assert list((tmp_path / "baton").iterdir()) == []
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    with pytest.raises(NativeError, match=r"no C compiler on the PATH \(looked for no-such-compiler -O1\); install"):
        build()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeError, match=r"no C compiler on the PATH \(looked for cc, gcc, clang\); install"):
        build()


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    with monkeypatch.context() as patch:
        patch.delenv("XDG_CACHE_HOME")
        patch.setattr(Path, "home", classmethod(homeless))
        with pytest.raises(NativeError, match="no home directory"):
            build()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(NativeError, match="cannot be written to"):
        build()


def test_the_process_has_one_openmp_runtime_and_torchs_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, where nothing else has loaded one; with a function that asks the runtime."""
    monkeypatch.delenv("XDG_CACHE_HOME")  # the usual cache has the library
    source = tmp_path / "threads.c"
    source.write_text("#include <omp.h>\nint threads(void) { return omp_get_max_threads(); }\n")
    compiler = shutil.which("cc")
    assert compiler is not None
    threads = tmp_path / "threads.so"
    subprocess.run([compiler, "-fopenmp", "-shared", "-fPIC", str(source), "-o", str(threads)], check=True)
    code = f"""
        import ctypes, torch
        from engine.backends.native.library import load
        load()
        for count in (3, 1):
            torch.set_num_threads(count)
            assert ctypes.CDLL({str(threads)!r}).threads() == count
        with open("/proc/self/maps") as maps:
            found = {{line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}}
        assert len(found) == 1, found
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
