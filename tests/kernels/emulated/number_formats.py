"""Bits of registers as numbers, and numbers as bits, for the types of PTX instructions."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
UNSIGNED: dict[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
TYPE = re.compile(r"(pred|bf16x2|f16x2|bf16|e4m3x2|e5m2x2|[busf]\d+)")


def bits_of(kind: str) -> int:
    """Returns the width of a type such as `s32`, `f16x2` or `pred`, in bits."""
    if kind == "pred":
        return 1
    number, _, times = kind.lstrip("bufs").partition("x")
    return int(number) * int(times or 1)


def numbers(bits: Array, kind: str) -> Array:
    """Returns unsigned integers of a type's width as the numbers they stand for; bf16 as fp32, which holds them all."""
    if kind == "pred":
        return bits
    if kind == "bf16":
        return np.asarray((bits.astype(np.uint32) << np.uint32(16)).view(np.float32))
    if kind in FLOATS:
        return np.ascontiguousarray(bits).view(FLOATS[kind])
    return np.ascontiguousarray(bits).view(SIGNED[bits_of(kind)]) if kind[0] == "s" else bits


def bits(values: Array, kind: str) -> Array:
    """Returns numbers as unsigned integers of a type's width; floats are rounded to the nearest, ties to even."""
    if kind == "pred":
        return values
    if kind == "bf16":
        return _bf16(values)
    if kind in FLOATS:
        return np.ascontiguousarray(values, FLOATS[kind]).view(UNSIGNED[bits_of(kind)])
    return np.asarray(values).astype(UNSIGNED[bits_of(kind)], copy=False)


def _bf16(values: Array) -> Array:
    whole = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (whole + np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded.astype(np.uint16))


def halves(words: Array, kind: str) -> Array:
    """Returns the numbers of a packed type, low half first: [..., 2] for 32 bits of bf16, [..., 4] for bytes."""
    if kind in FP8:
        raw = torch.from_numpy(np.ascontiguousarray(words).view(np.uint8).copy())
        return np.asarray(raw.view(FP8[kind]).float().numpy()).reshape(*words.shape, -1)
    width = bits_of(kind)
    return numbers(np.ascontiguousarray(words).view(UNSIGNED[width]), kind).reshape(*words.shape, -1)


def packed(parts: Array, kind: str) -> Array:
    """Returns numbers [..., n] as words that hold n of them, low part first."""
    if kind in FP8:  # saturating, as `cvt.satfinite` is
        largest = torch.finfo(FP8[kind]).max
        held = torch.from_numpy(np.ascontiguousarray(parts, np.float32)).clamp(-largest, largest).to(FP8[kind])
        return np.asarray(held.view(torch.uint8).numpy().view(UNSIGNED[8 * parts.shape[-1]])[..., 0])
    raw = np.ascontiguousarray(bits(parts, kind))
    return np.asarray(raw.view(UNSIGNED[raw.dtype.itemsize * 8 * parts.shape[-1]])[..., 0])
