"""Counts GPUs and assigns a GPU to each worker, without importing torch."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from contracts.errors import ConfigError
from infra.process.nvidia_driver import nvidia_smi, refuse_old_driver
from launcher.devices.gpu_links import divided, gpu_links

USABLE_MEMORY_SHARE = 0.9  # of a GPU's memory, for all its workers together
GPU_LINE_REGEX = re.compile(r"GPU (\d+): (.*) \(UUID: (.*)\)")


@dataclass(frozen=True)
class Placement:
    """Device of a worker. Its `settings` hide the GPUs of other workers, so that it opens no context on them."""

    device: str
    share: float | None = None  # of the GPU's memory
    settings: Mapping[str, str] = field(default_factory=dict)  # environment variables


def gpu_name(gpu: str) -> str:
    """Returns the name of a GPU by its entry of CUDA_VISIBLE_DEVICES, such as `NVIDIA L4`; '' if it is not listed."""
    listed = _listed(gpu)
    return listed[2] if listed else ""


def numbers_of(gpus: Sequence[str]) -> list[int]:
    """Returns the numbers by which nvidia-smi lists GPUs, given their entries of CUDA_VISIBLE_DEVICES.

    A GPU that is not listed, such as a part of one, gets a negative number.
    """
    listed = [_listed(gpu) for gpu in gpus]
    return [int(match[1]) if match else -1 - place for place, match in enumerate(listed)]


def _listed(gpu: str) -> re.Match[str] | None:
    lines = map(GPU_LINE_REGEX.fullmatch, nvidia_smi("-L").splitlines())
    return next((line for line in lines if line and (gpu == line[1] or line[3].startswith(gpu))), None)


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the GPUs that a child process sees, as entries of CUDA_VISIBLE_DEVICES."""
    present = sum(line.startswith("GPU ") for line in nvidia_smi("-L").splitlines())
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(number) for number in range(present)]
    # Like the driver: the list ends at the first entry that names no device.
    named = [entry.strip() for entry in chosen.split(",")]
    end = next((i for i, entry in enumerate(named) if entry in ("", "-1")), len(named))
    return named[: min(present, end)]


def usable_gpus(device: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the GPUs for workers on `device` (cpu, cuda, auto); empty: workers compute on the CPU.

    Raises `ConfigError` for `cuda` on a host without a usable GPU.
    """
    if device == "cpu":
        return []
    cpu_build = version("torch").endswith("+cpu")
    gpus = [] if cpu_build else visible_gpus(environment)
    if not gpus and device == "cuda":
        why = "the installed PyTorch is the CPU build" if cpu_build else "nvidia-smi shows no GPU on this host"
        raise ConfigError("--device", device, why)
    return gpus


def checked_gpus(device: str) -> list[str]:
    """Returns the GPUs for workers on `device`, as `usable_gpus` does. Raises `ConfigError` for too old a driver."""
    gpus = usable_gpus(device)
    if gpus:
        refuse_old_driver(device)
    return gpus


def placements(
    device: str,
    widths: Sequence[int],
    environment: Mapping[str, str] = os.environ,
    share: float = USABLE_MEMORY_SHARE,
) -> list[Placement]:
    """Assigns workers to GPUs; `widths`: GPUs of each.

    Workers of one GPU are dealt round-robin, and those on a GPU divide `share` of its memory. If a worker has several
    GPUs, all workers have theirs alone, with the fastest links to each other.

    Raises `ConfigError` for `cuda` on a host without a usable GPU.
    """
    gpus = usable_gpus(device, environment)
    if not gpus:
        return [Placement("cpu")] * len(widths)
    order = {} if "CUDA_VISIBLE_DEVICES" in environment else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as nvidia-smi counts
    on_gpu: list[tuple[str, ...]]
    if max(widths) == 1:
        on_gpu = [(gpus[worker % len(gpus)],) for worker in range(len(widths))]
    else:
        numbers = numbers_of(gpus)
        names = dict(zip(numbers, gpus, strict=True))
        on_gpu = [tuple(names[number] for number in own) for own in divided(numbers, widths, gpu_links())]
    return [
        Placement("cuda", round(share / on_gpu.count(own), 3), {**order, "CUDA_VISIBLE_DEVICES": ",".join(own)})
        for own in on_gpu
    ]
