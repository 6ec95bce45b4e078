"""Measures the candidates of each kernel, and keeps the best for the device.

Several rows can share a config, which depends on format and head size, say, and not on the length of a prompt. The best
config has the least product of their times. A candidate that does not fit, or gives a wrong result, is out.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from triton.errors import TritonError

from benchmarks.kernels.case import Case
from benchmarks.limits.device_time import seconds_of
from kernels.tuning import Config, asked, record

Key = tuple[str, str]
"""A kernel and a shape, as `tuned` is asked for them."""


class Tuner:
    """Measured candidates of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._found: dict[Key, list[list[float]]] = defaultdict(list)
        self._candidates: dict[Key, Sequence[Config]] = {}

    def add(self, kernel: str, case: Case, candidates: Sequence[Config]) -> None:
        with torch.inference_mode(), asked() as found:
            case.run(None)
        keys = {
            key for key in found if key[0] == kernel
        }  # a kernel may launch others, which have candidates of their own
        assert keys, f"{kernel} asks for no config"
        times = [self._time(case, config) for config in candidates]
        for key in keys:
            self._candidates[key] = candidates
            self._found[key].append(times)

    def best(self) -> dict[Key, Config]:
        chosen = {}
        for key, rows in self._found.items():
            loss = [sum(map(math.log, times)) for times in zip(*rows, strict=True)]
            if math.isfinite(min(loss)):
                chosen[key] = self._candidates[key][loss.index(min(loss))]
        return chosen

    def keep(self) -> list[str]:
        name = torch.cuda.get_device_name(self._device)
        lines = []
        for (kernel, shape), config in sorted(self.best().items()):
            record(name, kernel, shape, config)
            lines.append(f"{kernel} {shape}: {config.options()}")
        return lines

    def _time(self, case: Case, config: Config) -> float:
        try:
            with torch.inference_mode():
                case.check(config)
                return seconds_of(lambda: case.run(config), self._device)
        except (RuntimeError, AssertionError, TritonError) as error:
            print(f"{config.options()}: {' '.join(str(error).split())[:200]}")
            return math.inf
