"""A driver that is too old for PyTorch's CUDA build is refused before anything loads, by real programs and files."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.options import ROOT
from tests.nvidia_smi import write_nvidia_smi

UP = ("up", "--port", "0", "--dashboard-port", "0", "--redis", "redis://127.0.0.1:1")
NO_REDIS = "error: --redis: 'redis://127.0.0.1:1'"
"""The error of a check behind the driver's, in a start that goes no further."""


def ran(
    directory: Path, cuda: str | None, driver: str, supported: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python beside a driver, and a PyTorch in `directory` that was built for a version of CUDA."""
    torch = directory / "torch"
    torch.mkdir(exist_ok=True)
    if not (torch / "__init__.py").exists():
        (torch / "__init__.py").write_text("raise ImportError('too early')\n")
    (torch / "version.py").write_text(
        f"from typing import Optional\n__version__ = '2.13.0'\ncuda: Optional[str] = {cuda!r}\n"
        "git_version = 'unknown'\ndebug = False\nhip: Optional[str] = None\nrocm = None\nxpu: Optional[str] = None\n"
    )
    (directory / "torch-2.13.0.dist-info").mkdir()
    (directory / "torch-2.13.0.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.13.0\n")
    write_nvidia_smi(directory, 1, driver=driver, cuda=supported)
    path = f"{directory}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{directory}:{ROOT}"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    return subprocess.run([sys.executable, "-P", *words], env=environment, cwd=ROOT, capture_output=True, text=True)


def started(directory: Path, cuda: str | None, driver: str, supported: str, *options: str) -> str:
    """Runs `baton up` beside a PyTorch that consists of its version; returns its errors."""
    done = ran(directory, cuda, driver, supported, "-m", "launcher", *UP, *options)
    assert done.returncode == 2, done.stdout
    return done.stderr


@pytest.mark.parametrize(
    ("cuda", "driver", "supported", "said"),
    [
        ("13.0", "550.54.15", "12.4", "driver 550.54.15, which runs CUDA 12.4, is too old"),
        ("13.0", "570.86.10", "N/A", "driver 570.86.10 is too old"),
        ("12.6", "470.256.02", "11.4", "driver 470.256.02, which runs CUDA 11.4, is too old"),
    ],
)
def test_an_old_driver_is_refused_by_both_versions_with_what_helps(
    cuda: str, driver: str, supported: str, said: str, tmp_path: Path
) -> None:
    error = started(tmp_path, cuda, driver, supported)
    assert error.startswith(f"error: --device: 'auto': the NVIDIA {said} for the installed PyTorch 2.13.0, a build for")
    assert f"CUDA {cuda}: " in error and error.count("\n") == 1
    assert f"install driver {580 if cuda == '13.0' else 525} or newer" in error
    assert ("BATON_TORCH_INDEX=" in error) is (cuda == "13.0")


@pytest.mark.parametrize(
    ("cuda", "driver", "supported"),
    [
        ("13.0", "580.65.06", "13.0"),
        ("12.6", "525.60.13", "12.0"),  # a later minor version of CUDA runs, too
        ("13.0", "580.65.06", "N/A"),
        ("13.0", "550.54.15", "13.0"),  # with NVIDIA's package of forward compatibility
        (None, "470.256.02", "11.4"),
        ("13.0", "unknown", "unknown"),
    ],
)
def test_a_driver_that_may_do_is_not_refused(cuda: str | None, driver: str, supported: str, tmp_path: Path) -> None:
    assert started(tmp_path, cuda, driver, supported).startswith(NO_REDIS)


def test_a_start_without_gpus_asks_for_no_driver(tmp_path: Path) -> None:
    assert started(tmp_path, "13.0", "470.256.02", "11.4", "--device", "cpu").startswith(NO_REDIS)


def test_a_worker_alone_and_a_node_of_a_cluster_refuse_an_old_driver_too(tmp_path: Path) -> None:
    """The worker would compute on the CPU instead. Its PyTorch is the installed one, except for the version."""
    alone, node = tmp_path / "alone", tmp_path / "node"
    (alone / "torch").mkdir(parents=True)
    node.mkdir()
    installed = find_spec("torch")
    assert installed is not None and installed.origin is not None
    for entry in Path(installed.origin).parent.iterdir():
        if entry.name != "version.py":
            (alone / "torch" / entry.name).symlink_to(entry)
    worker = ran(
        alone, "13.0", "550.54.15", "12.4", "-m", "decode_service", "--redis", "redis://127.0.0.1:1", "--model", "m"
    )
    assert worker.returncode == 2 and "too old for the installed PyTorch 2.13.0" in worker.stderr, worker.stderr
    code = "from launcher.on_ray.node.check import complaint, versions; print(complaint(versions(), 'o/m', [], 'auto'))"
    asked = ran(node, "13.0", "550.54.15", "12.4", "-c", code)
    assert asked.stdout.startswith("--device: 'auto': the NVIDIA driver 550.54.15, which runs CUDA 12.4"), asked.stderr
