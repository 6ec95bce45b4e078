"""Memory that is handed out without being filled, made to show whether anybody reads it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def poisoned() -> Iterator[None]:
    """Inside, torch.empty gives NaN, and the greatest integer: PyTorch does that where it is to be deterministic."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1).isnan()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
