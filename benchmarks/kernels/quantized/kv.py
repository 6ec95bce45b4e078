"""Makes quantized pools of random ones, for the rows of kernels that store KV or read it."""

from typing import Literal

import torch
from torch import Tensor

from benchmarks.kernels.case import close
from kernels.quantized.kv_bytes import FORMS, reference_numbers, reference_packed

KVForm = Literal["numbers", "int8", "fp8"]
QUANTIZED: tuple[KVForm, ...] = ("int8", "fp8")
DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def in_form(pool: Tensor, form: KVForm, *parts: int) -> Tensor:
    """Returns a layer `[…, block, width]` of numbers, or as bytes `[…, bytes]`, a scale for each part of a vector."""
    return pool if form == "numbers" else reference_packed(pool, DTYPES[form], *parts)


def exact(pool: Tensor, *parts: int) -> Tensor:
    """Returns the numbers that a layer of either kind stands for, fp64 `[…, block, width]`."""
    return (reference_numbers(pool, *parts) if pool.dtype in FORMS else pool).double()


def bytes_of_vector(form: KVForm, dtype: torch.dtype, *parts: int) -> int:
    """Returns the bytes of a token's vector, with its scales."""
    return sum(parts) * dtype.itemsize if form == "numbers" else sum(parts) + 2 * len(parts)


def named(form: KVForm) -> list[str]:
    """Returns what a row's name says of it."""
    return [] if form == "numbers" else [f"KV in {form}"]


def close_in_form(found: Tensor, expected: Tensor, dtype: torch.dtype, *parts: int) -> None:
    """Compares layers of one kind; raises AssertionError.

    Numbers have to be close in their format. Bytes are those of numbers that were rounded to `dtype` by either way, and
    a number on the edge between two may have gone to the other one: so bytes are one step apart at most, and few are.
    """
    if found.dtype not in FORMS:
        close(found, expected)
        return
    one, other = exact(found, *parts), exact(expected, *parts)
    step = 1 / 127 if found.dtype == torch.int8 else 1 / 14
    for ours, theirs in zip(one.split(parts, -1), other.split(parts, -1), strict=True):
        assert ((ours - theirs).abs() <= theirs.abs().amax(-1, keepdim=True) * 1.01 * step).all(), "bytes are far apart"
    apart = float((found.view(torch.uint8) != expected.view(torch.uint8)).float().mean())
    assert apart < 0.05, f"{apart:.1%} of the bytes differ"
