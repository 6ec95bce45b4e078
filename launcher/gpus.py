"""Counts GPUs and gives each worker one, without importing torch."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import version

from core.errors import ConfigError

USABLE = 0.9  # share of a GPU's memory that all its workers take together
PATIENCE = 10.0  # s; nvidia-smi starts the driver first where persistence mode is off


def visible_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """Returns the number of GPUs that a child process will see."""
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return 0
    present = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    # As the driver reads it: the list ends at the first entry that names no device.
    named = [entry.strip() for entry in chosen.split(",")]
    end = next((i for i, entry in enumerate(named) if entry in ("", "-1")), len(named))
    return min(present, end)


def usable_gpus(device: str) -> int:
    """Returns the number of GPUs that workers on `device` (cpu, cuda, auto) will use; 0: they compute on the CPU.

    Raises `ConfigError` if GPUs are asked for and there are none.
    """
    if device == "cpu":
        return 0
    cpu_build = version("torch").endswith("+cpu")
    gpus = 0 if cpu_build else visible_gpus()
    if gpus == 0 and device == "cuda":
        why = "the installed PyTorch is the CPU build" if cpu_build else "nvidia-smi shows no GPU on this host"
        raise ConfigError("--device", device, why)
    return gpus


def worker_devices(device: str, workers: int) -> list[tuple[str, float | None]]:
    """Spreads workers over the GPUs in turn: for each its device, and its share of that memory (None on a CPU).

    Raises `ConfigError` if GPUs are asked for and there are none.
    """
    gpus = usable_gpus(device)
    if gpus == 0:
        return [("cpu", None)] * workers
    on_gpu = [worker % gpus for worker in range(workers)]
    return [(f"cuda:{gpu}", round(USABLE / on_gpu.count(gpu), 3)) for gpu in on_gpu]
