"""A device's failure has one name and its first line; other errors stay what they are."""

import pytest
import torch

from core.errors import DeviceError
from engine.device import device_errors, device_label


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might be"),
            "CUDA error: un",
        ),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), "Triton Error"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "lower --gpu-memory-utilization"),
    ],
    ids=["CUDA", "Triton", "memory"],
)
def test_what_a_device_reports_is_a_device_error(error: RuntimeError, told: str) -> None:
    with pytest.raises(DeviceError) as raised, device_errors():
        raise error
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_an_error_of_our_own_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="shapes differ") as raised, device_errors():
        raise RuntimeError("shapes differ")
    assert not isinstance(raised.value, DeviceError)


def test_a_gpu_is_called_by_the_name_that_people_know() -> None:
    """Each worker sees one GPU, and counts it as 0."""
    gpu = torch.device("cuda", 0)
    assert device_label(gpu, {}) == "cuda:0"
    assert device_label(gpu, {"CUDA_VISIBLE_DEVICES": "3"}) == "cuda:0 (GPU 3)"
    assert device_label(torch.device("cuda", 1), {"CUDA_VISIBLE_DEVICES": "3, 5"}) == "cuda:1 (GPU 5)"
    assert device_label(torch.device("cpu"), {"CUDA_VISIBLE_DEVICES": "3"}) == "cpu"
