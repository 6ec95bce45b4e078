"""Chooses PyTorch's package index: the default build on Linux has gigabytes of CUDA, of no use on a CPU.

Only the standard library: this runs before anything is installed.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INDEX_VARIABLE = "BATON_TORCH_INDEX"
SHORT_TIMEOUT = ("--timeout", "5", "--retries", "0")  # an unreachable index must not delay the set-up

# Returns torch's versions on a package index; None: the configured index.
Versions = Callable[[str | None], set[str]]


@dataclass(frozen=True)
class TorchSource:
    """Package index for torch; None: the configured index. `why` is shown to the user."""

    index: str | None
    why: str


def choose(version: str, settings: Mapping[str, str], nvidia: bool, versions: Versions) -> TorchSource:
    """Chooses the setting's index; else the default build for a GPU, or an index with a CPU build."""
    if index := settings.get(INDEX_VARIABLE):
        return TorchSource(index, f"PyTorch from {INDEX_VARIABLE}={index}")
    if nvidia:
        return TorchSource(None, "PyTorch with CUDA: this host has an NVIDIA driver")
    if platform.system() != "Linux":
        return TorchSource(None, "PyTorch")
    cpu = f"{version}+cpu"
    if cpu in versions(None):
        return TorchSource(None, "PyTorch's CPU build")
    if cpu in versions(CPU_INDEX):
        return TorchSource(CPU_INDEX, f"PyTorch's CPU build from {CPU_INDEX}")
    return TorchSource(
        None,
        f"PyTorch with CUDA, gigabytes: {CPU_INDEX} cannot be reached; {INDEX_VARIABLE}=URL names another index",
    )


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def pip_versions(python: str) -> Versions:
    """Returns a `Versions` over `pip index versions`, which downloads no package."""

    def versions(index: str | None) -> set[str]:
        command = [python, "-m", "pip", "index", "versions", "torch"]
        if index:
            command += [*SHORT_TIMEOUT, "--index-url", index]
        found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_NO_COLOR": "1"})
        listed = next((line for line in found.stdout.splitlines() if line.startswith("Available versions:")), "")
        return {word.strip() for word in listed.partition(":")[2].split(",")}

    return versions
