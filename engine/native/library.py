"""The native operators as a ctypes library. Its OpenMP runtime is the one that PyTorch has loaded.

Two runtimes in one process would each keep threads of its own that wait, spinning, for the other's: so PyTorch is
imported first, and its `libgomp.so.1` is what the loader finds for ours. `torch.set_num_threads` holds for both.
"""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_long, c_void_p

import torch

from core.errors import NativeError
from engine.native.build import build

FORMATS = {torch.float32: 0, torch.bfloat16: 1}
"""`enum format` in vector.h."""


class AttentionArguments(Structure):
    """`struct attention` in attention.c: what all layers of a step share."""

    _fields_ = (
        *((name, c_int64) for name in ("format", "kv_heads", "shared", "dim", "block")),
        ("scale", c_double),
        ("tables", c_void_p),
        ("table_stride", c_int64),
        ("tiles", c_void_p),
        ("tile_count", c_int64),
    )


ARGUMENTS: dict[str, tuple[type, ...]] = {
    "baton_pack": (c_int, c_void_p, c_long, c_long, c_void_p),
    "baton_linear": (c_int, c_void_p, c_long, c_long, c_long, c_void_p, c_void_p, c_void_p, c_long),
    "baton_attend": (POINTER(AttentionArguments), c_void_p, c_long, c_void_p, c_long, c_void_p),
    "baton_store": (
        *(POINTER(AttentionArguments), c_void_p, c_long, c_void_p, c_long),
        *(c_void_p, c_long, c_void_p),
    ),
    "baton_add_norm": (c_int, c_void_p, c_void_p, c_void_p, c_long, c_long, c_double, c_void_p),
    "baton_angles": (c_void_p, c_long, c_void_p, c_long, c_double, c_void_p, c_void_p),
    "baton_rotate": (
        *(c_int, c_void_p, c_long, c_long, c_long, c_long),
        *(c_void_p, c_void_p, c_void_p, c_double),
    ),
    "baton_gate": (c_int, c_void_p, c_long, c_long, c_void_p),
    "baton_sample": (
        *(c_int, c_void_p, c_long, c_char_p, c_long),
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    ),
}
"""Arguments of what returns nothing; the sources say what each is."""


def load() -> ctypes.CDLL:
    """The operators, compiled first where they have to be. Raises `NativeError` where that cannot be."""
    path = build()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"the native operators cannot be loaded: {error}") from error
    for name, arguments in ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    library.baton_packed_elements.argtypes, library.baton_packed_elements.restype = (c_int, c_long, c_long), c_long
    return library
