"""Kernels are checked where they can run: on a GPU if there is one, else in Triton's interpreter on the CPU."""

from collections.abc import Iterator

import pytest
import torch

from launcher.devices.gpus import visible_gpus
from tests.kernels.poison import poisoned

DEVICE = "cuda" if visible_gpus() else "cpu"
# The interpreter's `tl.dot` is silently wrong in bf16.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if visible_gpus() else [])


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels run."""
    return torch.device(DEVICE)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """A format of values that kernels are checked in there."""
    found: torch.dtype = request.param
    return found


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fills all memory that the test allocates with NaN."""
    with poisoned():
        yield
