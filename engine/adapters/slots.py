"""The loaded adapters, each in a slot of the linear layers; their number and rank are limited."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from contracts.errors import AdapterError, DeviceMemoryError
from engine.adapters.weights import read_adapter
from engine.device import device_errors
from engine.model.layers.adapted import Adaptable, AdapterTarget, Expansion, LowRank, adapter_bytes
from engine.plan import Work
from infra.sizes import format_bytes

BLANK_DIGEST = "blank"
AdapterTargets = Sequence[tuple[AdapterTarget, Adaptable]]


class AdapterSlots:
    """Up to `max_adapters` adapters of rank up to `max_rank`, for the linear layers `targets`."""

    def __init__(
        self, targets: AdapterTargets, max_adapters: int, max_rank: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._targets = targets
        self._max_adapters = max_adapters
        self._max_rank = max_rank
        self._device = device
        self._dtype = dtype
        self._slots: dict[str, int] = {}  # by digest
        self._lock = threading.Lock()

    def reserved_bytes(self) -> int:
        each = sum(adapter_bytes(target, self._max_rank, self._dtype) for target, _ in self._targets)
        return self._max_adapters * each

    def load(self, directory: Path) -> str:
        """Loads an adapter, unless it is loaded already, and returns its digest. On any thread, also during steps.

        Raises `AdapterError`.
        """
        targets = [target for target, _ in self._targets]
        try:
            with torch.inference_mode(), device_errors():
                digest, changes = read_adapter(directory, targets, self._max_rank, self._device, self._dtype)
        except DeviceMemoryError:
            raise AdapterError(
                f"there is no memory for {format_bytes(self.reserved_bytes() // self._max_adapters)}"
            ) from None
        with self._lock, torch.inference_mode():
            if digest not in self._slots:
                free = sorted({*range(1, self._max_adapters + 1)} - {*self._slots.values()})
                if not free:
                    raise AdapterError(f"{self._max_adapters} adapters are loaded already (--max-loras)")
                for (_, linear), change in zip(self._targets, changes, strict=True):
                    linear.put(free[0], change)
                self._slots[digest] = free[0]
        return digest

    @contextmanager
    def blank(self) -> Iterator[str]:
        """Lends an adapter of the largest rank that changes nothing, to measure a step before any adapter is loaded.

        Yields its digest. All its matrices are the same zeros, so that they take little of the memory that is measured.
        """
        rank = self._max_rank
        sizes = [size for target, _ in self._targets for size in (len(target.names) * target.inputs, *target.sizes)]
        with self._lock, torch.inference_mode():
            zeros = torch.zeros(rank * max(sizes), device=self._device, dtype=self._dtype)
            for target, linear in self._targets:
                ranks, firsts = len(target.names) * rank, np.cumsum([0, *target.sizes]).tolist()
                parts = tuple(
                    Expansion(first, number * rank, zeros[: rank * size].view(rank, size))
                    for number, (first, size) in enumerate(zip(firsts, target.sizes, strict=False))
                )
                linear.put(1, LowRank(zeros[: ranks * target.inputs].view(ranks, target.inputs), parts))
            assert not self._slots, "an adapter is loaded already"
            self._slots[BLANK_DIGEST] = 1
        try:
            yield BLANK_DIGEST
        finally:
            self.free(BLANK_DIGEST)

    def free(self, digest: str) -> None:
        """Frees an adapter's memory. Only between two steps, when no sequence uses it."""
        with self._lock, torch.inference_mode():
            slot = self._slots.pop(digest)
            for _, linear in self._targets:
                linear.put(slot, None)

    def slots_of(self, works: Sequence[Work]) -> list[int] | None:
        """Returns the slot of each work, 0 without an adapter; None if no work has one."""
        if not any(work.adapter for work in works):
            return None
        return [self._slots[work.adapter] if work.adapter else 0 for work in works]
