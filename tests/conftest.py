"""What holds for every test: the GPU's tests run where there is one, and are deselected, visibly, elsewhere."""

import os

# Test models are far too small for a second thread, and idle OpenMP threads spin in the way of the services under test.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import pytest

from launcher.gpus import visible_gpus

# Triton decides when a kernel is decorated: without a GPU all of them run in its interpreter, on the CPU's tensors.
if not visible_gpus():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests marked `gpu` on a machine without one; pytest's closing line counts them."""
    marked = [item for item in items if item.get_closest_marker("gpu") is not None]
    if marked and not visible_gpus():
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]
