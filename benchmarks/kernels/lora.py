"""Adds what adapters add to a linear layer's outputs in a recorded step: bound by reading their matrices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.case import Case, Limit, Size, Target, close, random
from kernels.lora import CANDIDATES, WORDS, adapt, reference
from kernels.tuning import Config

LIMIT: Limit = "copy"

__all__ = ["CANDIDATES", "LIMIT", "SHAPES"]


@dataclass(frozen=True)
class Adapted:
    """Describes rows that take turns among some adapters of one rank, and a layer with parts of so many outputs."""

    rows: int
    adapters: int
    rank: int
    inputs: int
    parts: tuple[int, ...]
    target: Target | None = None

    def __str__(self) -> str:
        parts = " + ".join(map(str, self.parts))
        return f"{self.rows} x {self.inputs} -> {parts}, {self.adapters} adapters of rank {self.rank}"

    def case(self, device: torch.device, dtype: torch.dtype) -> Case:
        """Makes inputs, as `benchmarks.kernels.case.Shape` says."""
        ranks, outputs = self.rank * len(self.parts), sum(self.parts)
        x, y = random((self.rows, self.inputs), device, dtype), random((self.rows, outputs), device, dtype)
        slots = torch.arange(self.rows, device=device) % self.adapters + 1
        words = torch.zeros((self.adapters + 1, 1 + len(self.parts), WORDS), dtype=torch.int64)
        adapters: dict[int, tuple[Tensor, list[tuple[int, int, Tensor]]]] = {}
        for slot in range(1, self.adapters + 1):
            a = random((ranks, self.inputs), device, dtype) * self.inputs**-0.5
            own: list[tuple[int, int, Tensor]] = []
            for number, size in enumerate(self.parts):
                b = random((self.rank, size), device, dtype) * self.rank**-0.5
                own.append((sum(self.parts[:number]), number * self.rank, b))
            adapters[slot] = (a, own)
            if device.type != "meta":  # where there are no addresses
                rows = [(a.data_ptr(), 0, ranks, 0, 0)]
                rows += [(b.data_ptr(), begin, self.rank, first, b.shape[1]) for first, begin, b in own]
                words[slot] = torch.tensor(rows)
        table = words.to(device)

        def run(config: Config | None) -> Tensor:
            found = y.clone()
            adapt(x, found, slots, table, ranks, config=config)
            return found

        read = min(self.adapters, self.rows) * (ranks * self.inputs + self.rank * outputs)
        return Case(
            run,
            lambda config: close(run(config), reference(x, y, slots, adapters)),
            bytes=(read + x.numel() + 4 * y.numel()) * dtype.itemsize,
        )


QKV, GATE_UP = (4096, (4096, 1024, 1024)), (4096, (14336, 14336))
SHAPES: Mapping[Size, Sequence[Adapted]] = {
    "full": [
        *(Adapted(rows, adapters, 16, *QKV) for rows, adapters in ((1, 1), (32, 1), (32, 8))),
        *(Adapted(rows, adapters, 16, *GATE_UP) for rows, adapters in ((1, 1), (32, 8))),
        Adapted(32, 8, 64, *QKV),
    ],
    "tiny": [Adapted(3, 2, 4, 40, (20, 12))],
    "compiled": [Adapted(7, 3, 5, 2000, (130,))],
}
