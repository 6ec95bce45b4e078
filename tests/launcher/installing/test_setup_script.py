"""`./baton` itself, in a folder of its own: the Pythons it accepts, its sentences, and an installation by a real pip.

The packages that are installed are empty wheels made here, so that pip has real work and needs no network.
"""

import getpass
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from launcher.installing.removable import owned_by_another, reason_to_keep
from launcher.installing.requirements import base_name, requirements
from launcher.installing.torch_source import has_nvidia_driver
from launcher.options import ROOT
from tests.waiting import alive, children, wait_until

SCRIPTS = (
    *(f"contracts/{name}.py" for name in ("__init__", "version")),
    *(f"infra/{name}.py" for name in ("__init__", "spelling")),
    *(f"launcher/{name}.py" for name in ("__init__", "ray_process", "stages", "words", "options")),
    *(
        f"launcher/installing/{name}.py"
        for name in ("__init__", "install", "removable", "requirements", "torch_source")
    ),
)
OLD_PYTHON = '#!/bin/sh\ncase "$2" in *print*) echo 3.8;; *) exit 1;; esac\n'
PYTHON_WITHOUT_VENV = '#!/bin/sh\ncase "$2" in *print*) echo 3.11;; *ensurepip*) exit 1;; esac\n'
MAIN = "import sys, torch, extra\nprint('started', *sys.argv[1:], torch.__file__ is not None)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with Baton's own set-up and two tiny dependencies."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    shutil.copy(ROOT / "baton", folder)
    for name in SCRIPTS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "launcher" / "__main__.py").write_text(MAIN)
    (folder / "pyproject.toml").write_text(
        '[project]\ndependencies = ["torch", "extra>=1"]\n[project.optional-dependencies]\ntest = []\ncuda = []\n'
    )
    (folder / "constraints.txt").write_text("torch==1.0\nextra==1.0\n")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, version in (("torch", "1.0+cpu"), ("extra", "1.0"), ("extra", "2.0")):
        make_wheel(wheels, name, version)
    return folder


def make_wheel(wheels: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheels / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"tests/test_{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def environment(folder: Path, **settings: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "BATON_PYTHON": sys.executable,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder.parent / "wheels"),
        **settings,
    }


def baton(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "baton"), *arguments], env=environment(folder, **settings), capture_output=True, text=True
    )


def path_with(tmp_path: Path, **programs: str) -> str:
    path = tmp_path / "bin"
    path.mkdir()
    (path / "dirname").symlink_to(shutil.which("dirname") or "")
    for name, text in programs.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    return str(path)


def installed(folder: Path) -> set[str]:
    return {
        path.name.removesuffix(".dist-info") for path in folder.glob(".venv/lib/python3*/site-packages/*.dist-info")
    }


def test_installs_once_resumes_and_follows_the_pins(folder: Path) -> None:
    # The first installation fails in its second half, as an interrupted one would.
    # Nor has the index the pip that is asked for, and that of `.venv` does.
    (folder / "constraints.txt").write_text("torch==1.0\nextra==1.5\npip==0.1\n")
    failed = baton(folder, "up")
    assert failed.returncode == 1
    line = failed.stderr.splitlines()[-1]
    assert line.startswith("error: installing packages failed: Cannot install extra>=1 because")
    assert line.endswith(f"(the whole log: {folder}/.venv/install.log)")
    assert "torch-1.0+cpu" in installed(folder)

    (folder / "constraints.txt").write_text("torch==1.0\nextra==1.0\n")
    resumed = baton(folder, "up", "--port", "1")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == "started up --port 1 True\n", "a command's output may go into a file"
    assert "making .venv" not in resumed.stderr
    assert "extra-1.0" in installed(folder)
    bytecode = {path.name.partition(".")[0] for path in folder.glob(".venv/lib/python3*/site-packages/__pycache__/*")}
    assert {"torch", "extra"} <= bytecode
    own_tests = {path.name for path in folder.glob(".venv/lib/python3*/site-packages/tests/*")}
    assert own_tests == {"test_torch.py", "test_extra.py"}, "what a package tests itself with is not compiled"

    assert baton(folder, "up").stdout == "started up True\n"

    (folder / "constraints.txt").write_text("torch==1.0\nextra==2.0\n")
    assert baton(folder, "status").stdout == "started status True\n"
    assert "extra-1.0" in installed(folder), "status installs nothing"
    assert "installing packages" in baton(folder, "up").stderr
    assert "extra-2.0" in installed(folder)

    # Relative paths stay the caller's, and a folder of the caller's that is called launcher is not taken for ours.
    elsewhere = folder.parent / "elsewhere"
    (elsewhere / "launcher").mkdir(parents=True)
    (elsewhere / "launcher" / "__init__.py").write_text("raise RuntimeError('not ours')")
    (folder / "launcher" / "__main__.py").write_text("import os\nprint(os.getcwd())\n")
    command = [str(folder / "baton"), "up"]
    shown = subprocess.run(
        command, env=environment(folder), cwd=elsewhere, stdout=subprocess.PIPE, text=True, check=True
    )
    assert shown.stdout == f"{elsewhere}\n"


def test_what_only_a_gpu_needs_is_installed_beside_a_driver(folder: Path, tmp_path: Path) -> None:
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace("cuda = []", 'cuda = ["compiler"]'))
    make_wheel(tmp_path / "wheels", "compiler", "1.0")
    assert baton(folder, "up").returncode == 0
    assert ("compiler-1.0" in installed(folder)) == has_nvidia_driver()

    driver = f"{path_with(tmp_path, **{'nvidia-smi': ''})}{os.pathsep}{os.environ['PATH']}"
    assert baton(folder, "up", PATH=driver).returncode == 0
    assert "compiler-1.0" in installed(folder)


def test_triton_is_for_gpus_and_for_tests() -> None:
    def packages(*extras: str) -> set[str]:
        return {base_name(wish) for wish in requirements(ROOT, extras)}

    assert "triton" not in packages()
    assert "triton" in packages("cuda") & packages("test")


def test_a_stopped_set_up_leaves_no_process_and_two_starts_at_once_resume_it(folder: Path) -> None:
    with subprocess.Popen([str(folder / "baton"), "up"], env=environment(folder), stderr=subprocess.PIPE) as stopped:
        # Before its first line it may still be the shell, which has children too and ends by the signal itself.
        assert stopped.stderr is not None
        assert b"making .venv" in stopped.stderr.readline()
        wait_until(lambda: len(children(stopped.pid)) >= 2, "venv's own child")
        pids = children(stopped.pid)
        stopped.terminate()
        assert b"the next start resumes the installation" in stopped.stderr.read()
    assert stopped.returncode == 130
    wait_until(lambda: not any(alive(pid) for pid in pids), "the end of what it had started")

    both = [
        subprocess.Popen([str(folder / "baton"), "up"], env=environment(folder), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("making .venv" in output for output in outputs) == 1
    assert sum("waiting for another set-up" in output for output in outputs) == 1


@pytest.mark.parametrize(
    ("programs", "sentence"),
    [
        ({}, "error: no Python 3.11, 3.12 or 3.13 found (there is no python3 on the PATH)"),
        ({"python3": OLD_PYTHON}, "error: no Python 3.11, 3.12 or 3.13 found (python3 is 3.8)"),
        (
            {"python3": OLD_PYTHON, "python3.11": PYTHON_WITHOUT_VENV},
            "error: python3.11 cannot make virtual environments; on Debian and Ubuntu: apt install python3.11-venv",
        ),
    ],
)
def test_a_missing_python_is_told_in_one_sentence(
    folder: Path, tmp_path: Path, programs: dict[str, str], sentence: str
) -> None:
    result = baton(folder, "up", PATH=path_with(tmp_path, **programs), BATON_PYTHON="")
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(sentence)


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (None, ": there is no such program"),
        (OLD_PYTHON, " is Python 3.8; 3.11, 3.12 or 3.13 is needed"),
        (PYTHON_WITHOUT_VENV, " cannot make virtual environments; on Debian and Ubuntu: apt install python3.11-venv"),
    ],
)
def test_a_named_python_that_does_not_fit_is_refused(
    folder: Path, tmp_path: Path, program: str | None, sentence: str
) -> None:
    python = f"{path_with(tmp_path, **({'mine': program} if program else {}))}/mine"
    result = baton(folder, "up", BATON_PYTHON=python)
    assert (result.returncode, result.stderr) == (1, f"error: BATON_PYTHON={python}{sentence}\n")


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["fly"], 2, "error: 'fly' is no command of baton; there are: up, chat, "),
        (["test", "--hlep"], 2, "error: --hlep: no such option; --help explains\n"),
        (["up", "--prot", "8000"], 2, "error: --prot: no such option (did you mean --port?); --help lists them\n"),
        (["up", "--prefil=2"], 2, "error: --prefil: no such option (did you mean --prefill?); --help lists them\n"),
        (["status"], 1, "error: nothing is installed in "),
    ],
)
def test_words_that_no_command_takes_install_nothing(
    folder: Path, words: list[str], status: int, sentence: str
) -> None:
    result = baton(folder, *words)
    assert (result.returncode, result.stdout) == (status, "") and result.stderr.startswith(sentence)
    assert not (folder / ".venv").exists()


@pytest.mark.parametrize("words", [[], ["--help"], ["help"]])
def test_help_installs_nothing(folder: Path, words: list[str]) -> None:
    assert "./baton up --model" in baton(folder, *words).stdout and not (folder / ".venv").exists()


@pytest.fixture
def older(folder: Path) -> Path:
    """A `.venv` that another Python has made, as far as its own file says, with something in it that must stay."""
    venv = folder / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "python-version").write_text("3.9.0")
    (venv / "kept").touch()
    return venv


def refused(folder: Path) -> str:
    """The one sentence by which a start refuses to remove `.venv`, of which all stays."""
    result = baton(folder, "up")
    assert (result.returncode, result.stdout) == (1, "") and (folder / ".venv" / "kept").exists()
    (line,) = result.stderr.splitlines()
    return line


def test_a_venv_that_processes_run_from_is_not_removed(folder: Path, older: Path) -> None:
    (older / "bin" / "python").symlink_to(sys.executable)
    running = [str(older / "bin" / "python"), "-c", "import signal; print(flush=True); signal.pause()"]
    with subprocess.Popen(running, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None and user.stdout.readline()
        line = refused(folder)
        user.kill()
    assert line.startswith(f"error: {older} was made by another Python, and is in use (processes {user.pid}): stop")
    assert baton(folder, "up").stdout.splitlines()[-1] == "started up True", "it is removed when nobody uses it"
    assert not (older / "kept").exists()


def test_a_venv_that_is_a_link_is_not_removed(folder: Path, older: Path) -> None:
    older.rename(folder / "shared")
    older.symlink_to("shared")
    assert refused(folder).startswith(f"error: {older} is a link, and was made by another Python: ")


def test_a_venv_of_another_user_is_neither_removed_nor_changed(older: Path) -> None:
    owner = older.stat().st_uid
    assert owned_by_another(older, owner) == ""
    sentence = owned_by_another(older, owner + 1)
    assert sentence.startswith(f"{older} belongs to {getpass.getuser()} and is not complete: ")


def test_a_venv_whose_python_this_user_may_not_run_is_not_removed(folder: Path, older: Path, tmp_path: Path) -> None:
    (older / "bin" / "python").symlink_to(tmp_path / "hidden")
    (tmp_path / "hidden").touch(mode=0o600)
    assert refused(folder).startswith(f"error: you may not run {tmp_path}/hidden, the Python of {older}: ")
    (tmp_path / "hidden").unlink()
    assert reason_to_keep(older) == "", "a Python that is gone runs nobody"


def test_a_python_that_fits_is_found_behind_one_that_does_not(folder: Path, tmp_path: Path) -> None:
    good = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    path = path_with(tmp_path, python3=OLD_PYTHON, **{"python3.13": good})
    assert "./baton up --model" in baton(folder, "help", PATH=path, BATON_PYTHON="").stdout


def test_ctrl_c_before_a_command_begins_is_a_word() -> None:
    """The signal comes before the launcher's imports, waits for their end, and leaves no traceback."""
    run = "sys.argv = ['baton', 'status']; runpy.run_module('launcher', run_name='__main__')"
    launcher = f"import os, runpy, signal, sys; os.kill(os.getpid(), signal.SIGINT); {run}"
    words = [sys.executable, "-c", launcher]
    script = f"from launcher.installing.install import _become; _become({sys.executable!r}, {words!r})"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
