"""Operators for ARM processors, which QEMU emulates, a few shapes of products, experts, attention, norms, layers.

With `BATON_TEST_LEVEL=neon_bf16`, or another of `levels.ARM_LEVELS`, this folder's tests all run so.
"""

import ctypes
from pathlib import Path

import pytest
import torch

from contracts.errors import NativeError
from engine.backends import choice
from engine.backends.native.compiling.build import NATIVE_TARGET, native_target
from engine.backends.native.linear_layers.linear import NativeLinear, prove
from tests.engine.backends.native.compiling.test_levels import at_a_wall
from tests.engine.backends.native.emulated import emulated
from tests.engine.backends.native.levels import ARM_LEVELS, library_of
from tests.engine.backends.native.linear_layers.test_experts import test_it_equals_the_formula as check_experts
from tests.engine.backends.native.linear_layers.test_experts import (
    test_quantized_weights_are_what_they_stand_for as check_quantized_experts,
)
from tests.engine.backends.native.measures import LIMITS, random, relative_error
from tests.engine.backends.native.test_attention import LIMITS as ATTENTION_LIMITS
from tests.engine.backends.native.test_attention import ODD, attended
from tests.engine.backends.native.test_elementwise import test_add_norm as check_add_norm
from tests.engine.backends.native.test_elementwise import test_gate as check_gate
from tests.engine.backends.native.test_elementwise import test_rotate as check_rotate
from tests.engine.backends.native.test_layers import PLANS
from tests.engine.backends.native.test_layers import test_two_calls_a_layer_equal_its_operators as check_layers
from tests.engine.backends.reference.attention.test_latent_attention import (
    test_native_attention_equals_the_definition as check_latent_attention,
)
from tests.kernels.poison import poisoned

NEWEST = "neon_bf16"


@pytest.fixture(scope="module")
def arm() -> ctypes.CDLL:
    return library_of(NEWEST)


def test_it_proves_itself(arm: ctypes.CDLL) -> None:
    prove(arm)


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (17, 257), (33, 2080)])
def test_linear_equals_the_reference_and_rows_are_on_their_own(
    arm: ctypes.CDLL, outputs: int, inputs: int, dtype: torch.dtype, limit: float
) -> None:
    weight, offset = random(outputs, inputs, seed=1, dtype=dtype), random(outputs, seed=2, dtype=dtype)
    layer = NativeLinear(arm, at_a_wall(weight), at_a_wall(offset))
    x = at_a_wall(random(39, inputs, seed=3, dtype=dtype))
    whole = layer(x)
    assert relative_error(whole, x.double() @ weight.double().T + offset.double()) < limit
    for rows in (1, 2, 7, 16):
        assert torch.equal(layer(x[-rows:]), whole[-rows:]), rows


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
def test_what_lies_between(arm: ctypes.CDLL, dtype: torch.dtype, limit: float) -> None:
    check_add_norm(arm, 63, 257, dtype, limit)
    check_rotate(arm, 22, "all", 0.5, dtype, limit)
    check_gate(arm, "silu", 257, dtype, limit)


@pytest.mark.parametrize("dtype", ATTENTION_LIMITS, ids=["fp32", "bf16"])
def test_attention_whose_tiles_threads_divide(arm: ctypes.CDLL, dtype: torch.dtype) -> None:
    """Partial states are NaN before the operator clears them, on pages that the emulation has not fetched yet."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with poisoned():
            error = attended(arm, ODD["long"], kv_heads=1, shared=8, dim=128, dtype=dtype)[1]
    finally:
        torch.set_num_threads(before)
    assert error < ATTENTION_LIMITS[dtype]


@pytest.mark.parametrize(("dtype", "limit"), LIMITS, ids=["fp32", "bf16"])
def test_experts(arm: ctypes.CDLL, dtype: torch.dtype, limit: float) -> None:
    check_experts(arm, "odd", dtype, limit)
    for kind in ("int8 by output", "mxfp4", "fp8 by 128"):
        check_quantized_experts(arm, kind, dtype, limit)


@pytest.mark.parametrize("dtype", ATTENTION_LIMITS, ids=["fp32", "bf16"])
def test_attention_to_latent_vectors(arm: ctypes.CDLL, dtype: torch.dtype) -> None:
    check_latent_attention(arm, "whole and parts", "17 heads", dtype, 8)


def test_a_models_layers(arm: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "load", lambda: arm)
    check_layers("deepseek-v3-dense", "bf16", PLANS["chunks and decodes"], tmp_path, monkeypatch)


def test_what_is_read_too_far_is_an_error(arm: ctypes.CDLL) -> None:
    """Emulated code that reads a page without permissions in this process faults, which ends the emulation."""
    library = emulated(ARM_LEVELS[NEWEST])
    weight = at_a_wall(random(64, 64, seed=1))
    layer = NativeLinear(library, weight, None)
    layer.arguments.packed = weight.data_ptr() + weight.nbytes
    with pytest.raises(NativeError, match="baton_linear touches 0x"):
        layer(random(1, 64, seed=2))


@pytest.mark.parametrize(
    ("features", "options"),
    [
        ("Features\t: fp asimd evtstrm aes crc32 cpuid", "-march=armv8-a"),
        ("Features\t: fp asimd atomics asimdhp asimddp bf16", "-march=armv8.2-a+dotprod"),
        ("Features\t: fp asimd atomics asimddp sve i8mm bf16\nCPU part\t: 0xd40", "-march=armv8.2-a+dotprod+bf16+i8mm"),
    ],
)
def test_a_processors_features_choose_the_instructions(features: str, options: str) -> None:
    assert native_target("aarch64", features) == (options,)
    assert native_target("x86_64", "flags\t: avx2") == NATIVE_TARGET
