"""Chooses tile sizes, warps and pipeline stages of the kernels: tuned values of a device, or defaults.

Nothing is tuned while requests run. `python -m benchmarks.kernels --tune` measures the candidates that each kernel
names, and keeps the best of each shape in this host's own table (`tuned_tables.py`), by the device's name.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache

import torch

from kernels import tuned_tables
from kernels.shape_cache import forget_shapes

_watching: list[list[tuple[str, str]]] = []
"""Requests that each open `asked` has recorded; the innermost is last."""


@dataclass(frozen=True)
class Config:
    """Launch configuration of a kernel. Wrappers take one, by default the `tuned` one."""

    tiles: Mapping[str, int]  # its `tl.constexpr` sizes by name
    warps: int = 4
    stages: int = 2

    def __hash__(self) -> int:
        return hash((self.warps, self.stages))

    def options(self) -> dict[str, int]:
        return {**self.tiles, "num_warps": self.warps, "num_stages": self.stages}


def tuned(kernel: str, shape: str, device: torch.device, default: Config) -> Config:
    """Returns the tuned config of a kernel on this kind of device for a `shape` such as `bf16,dim=128,shared=4`."""
    if _watching:
        _watching[-1].append((kernel, shape))
    if device.type != "cuda":
        return default
    return _of_device(_name(device)).get((kernel, shape), default)


@contextmanager
def asked() -> Iterator[list[tuple[str, str]]]:
    """Records kernels and shapes that `tuned` is asked for while the context is open, a prepared launch only once."""
    _watching.append([])
    forget_shapes()  # else shapes that are prepared already would not ask
    try:
        yield _watching[-1]
    finally:
        _watching.pop()


def record(name: str, kernel: str, shape: str, config: Config) -> None:
    """Records a measured config for devices of this name."""
    tuned_tables.keep(name, kernel, shape, asdict(config))
    _of_device.cache_clear()
    forget_shapes()


@cache
def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device)


@cache
def _of_device(name: str) -> dict[tuple[str, str], Config]:
    kernels = tuned_tables.of_device(name)
    return {(kernel, shape): Config(**found) for kernel, shapes in kernels.items() for shape, found in shapes.items()}
