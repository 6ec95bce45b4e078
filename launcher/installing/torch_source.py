"""Chooses where PyTorch comes from: the index's default on Linux is the CUDA build, gigabytes of no use to a CPU.

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
SETTING = "BATON_TORCH_INDEX"
PATIENCE = ("--timeout", "5", "--retries", "0")  # an index that cannot be reached must not hold up the set-up

# Asks the package index (the configured one, or the one given) which versions of torch it has.
Versions = Callable[[str | None], set[str]]


@dataclass(frozen=True)
class TorchSource:
    """Names the package index to take torch from, None for the configured one; `why` is told to the user."""

    index: str | None
    why: str


def choose(version: str, settings: Mapping[str, str], nvidia: bool, versions: Versions) -> TorchSource:
    """Chooses: the setting wins, a host with a GPU takes the default build, others look for the nearest CPU build."""
    if index := settings.get(SETTING):
        return TorchSource(index, f"PyTorch from {SETTING}={index}")
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
        f"PyTorch with CUDA, gigabytes: {CPU_INDEX} cannot be reached; {SETTING}=URL names another index",
    )


def has_nvidia_driver() -> bool:
    """Tells whether an NVIDIA driver is loaded on this host."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def pip_versions(python: str) -> Versions:
    """Makes what lists versions by `pip index versions`, which reads the index's page and downloads no package."""

    def versions(index: str | None) -> set[str]:
        command = [python, "-m", "pip", "index", "versions", "torch"]
        if index:
            command += [*PATIENCE, "--index-url", index]
        found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PIP_NO_COLOR": "1"})
        listed = next((line for line in found.stdout.splitlines() if line.startswith("Available versions:")), "")
        return {word.strip() for word in listed.partition(":")[2].split(",")}

    return versions
