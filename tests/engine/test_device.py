"""A device's failure has one name and its first line; other errors stay what they are."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from triton.runtime.errors import OutOfResources

from contracts.errors import ConfigError, DeviceError, ModelError
from engine.backends.choice import choose
from engine.device import ALIGNED_BYTES, choose_dtype, device_errors, device_label, to_device_together
from engine.start.load import load_engine
from infra.config.engine import EngineConfig
from tests.engine.kv.test_pool import CONFIG

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might be"),
            "CUDA error: un",
        ),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), "Triton Error"),
        (OutOfResources(131072, 101376, "shared memory"), "shared memory, Required: 131072, Hardware limit: 101376"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "lower --gpu-memory-utilization"),
    ],
    ids=["CUDA", "Triton", "resources", "memory"],
)
def test_what_a_device_reports_is_a_device_error(error: Exception, told: str) -> None:
    with pytest.raises(DeviceError) as raised, device_errors():
        raise error
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_fused_attention_is_never_cudnns() -> None:
    """Which makes a plan for every new pair of sizes. Loading begins with it, whatever becomes of the model."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    with pytest.raises(ModelError):
        load_engine(EngineConfig(model="/no/such/model", device="cpu"), lambda stage, percent: None)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_an_error_of_our_own_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="shapes differ") as raised, device_errors():
        raise RuntimeError("shapes differ")
    assert not isinstance(raised.value, DeviceError)


def test_a_gpu_is_called_by_the_name_that_people_know() -> None:
    """Each worker sees one GPU, and counts it as 0."""
    assert device_label(GPU, {}) == "cuda:0"
    assert device_label(GPU, {"CUDA_VISIBLE_DEVICES": "3"}) == "cuda:0 (GPU 3)"
    assert device_label(torch.device("cuda", 1), {"CUDA_VISIBLE_DEVICES": "3, 5"}) == "cuda:1 (GPU 5)"
    assert device_label(torch.device("cpu"), {"CUDA_VISIBLE_DEVICES": "3"}) == "cpu"


@pytest.fixture
def turing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of sm_75, as PyTorch describes it: bf16 is supported, by emulation."""
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "Tesla T4")


@pytest.mark.usefixtures("turing")
def test_a_gpu_without_bf16_computes_in_fp16() -> None:
    assert choose_dtype("auto", GPU) == choose_dtype("fp16", GPU) == torch.float16
    assert choose_dtype("fp32", GPU) == torch.float32
    sentence = r"^--dtype: 'bf16': cuda:0 \(Tesla T4, sm_75\) has no bf16; use fp16, fp32 or auto$"
    with pytest.raises(ConfigError, match=sentence):
        choose_dtype("bf16", GPU)


@pytest.mark.parametrize(
    ("multiplied", "widened", "native", "expected", "why"),
    [
        (True, True, False, torch.bfloat16, "the processor multiplies bf16"),
        (False, True, True, torch.bfloat16, "native operators widen it"),
        (False, True, False, torch.float32, "would emulate them"),
        (False, False, True, torch.float32, "would emulate them"),
    ],
)
def test_a_cpu_takes_the_faster_format_and_says_why(
    multiplied: bool,
    widened: bool,
    native: bool,
    expected: torch.dtype,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("engine.device.cpu_multiplies_bf16", lambda: multiplied)
    monkeypatch.setattr("engine.device.cpu_widens_bf16", lambda: widened)
    with caplog.at_level(logging.INFO):
        assert choose_dtype("auto", torch.device("cpu"), widened=native) == expected
    assert why in caplog.text
    assert choose_dtype("fp32", torch.device("cpu"), widened=native) == torch.float32


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_gpus_from_ampere_on_compute_in_bf16(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    assert choose_dtype("auto", GPU) == choose_dtype("bf16", GPU) == torch.bfloat16


@pytest.mark.usefixtures("turing")
def test_a_gpu_older_than_the_kernels_has_pytorchs_operators(caplog: pytest.LogCaptureFixture) -> None:
    """Triton would spill 50 KB of registers there, and take minutes to compile that."""
    with caplog.at_level(logging.WARNING):
        assert choose(EngineConfig(model="m", device="cuda"), GPU, torch.float16, CONFIG).name == "torch"
    assert "not Triton's kernels: those need sm_80, and this is cuda:0 (Tesla T4, sm_75)" in caplog.text
    with pytest.raises(ConfigError, match=r"^--cuda-backend: 'triton': cuda:0 \(Tesla T4, sm_75\) is older than"):
        choose(EngineConfig(model="m", device="cuda", cuda_backend="triton"), GPU, torch.float16, CONFIG)


def test_arrays_that_travel_together_come_out_as_they_went_in() -> None:
    """Empty ones too, and one whose memory is not in its order; each is where a kernel expects it."""
    one, two = np.arange(7, dtype=np.int32), np.arange(12, dtype=np.float32).reshape(3, 4).T
    empty, last = np.empty((4, 0), np.int32), np.array([1 << 40], np.int64)
    arrays: list[NDArray[Any]] = [one, two, empty, last]
    for there, array in zip(to_device_together(arrays, torch.device("cpu")), arrays, strict=True):
        assert there.shape == array.shape and np.array_equal(there.numpy(), array) and there.is_contiguous()
        assert there.data_ptr() % ALIGNED_BYTES == 0
    assert to_device_together([empty], torch.device("cpu"))[0].shape == (4, 0)
