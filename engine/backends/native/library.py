"""Loads the native operators as a ctypes library that shares PyTorch's OpenMP runtime.

Two runtimes in one process would each keep spinning threads, so PyTorch is imported first, and the loader finds its
`libgomp.so.1`. `torch.set_num_threads` applies to both. A test compares the structures with the C headers.
"""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_long, c_void_p

import torch

from contracts.errors import NativeError
from engine.backends.native.compiling.prebuilt import choose_library
from engine.model.quantized import Form

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}
"""`enum format` in vector.h."""
QUANTIZED_CODES: dict[Form, int] = {"int8": 2, "int4": 3, "fp8": 4}
"""Codes of quantized weight formats in linear.h."""
KV_DTYPE_CODES = {**DTYPE_CODES, torch.int8: 3, torch.float8_e4m3fn: 4}
"""Codes of KV pool dtypes in attention_step.h."""
CODEC_DTYPE_CODES = {"fp32": 0, "bf16": 1, "fp16": 2, "int8": 3, "fp8": 4}
"""Codes of pool dtypes and wire codecs in codec.c."""


class AttentionArguments(Structure):
    """Mirrors `struct attention` in attention_step.h: arguments shared by all layers of a step."""

    _fields_ = (
        *((name, c_int64) for name in ("format", "kv", "kv_heads", "vectors", "shared", "dim", "value_dim", "block")),
        ("window", c_int64),
        ("tables", c_void_p),
        ("table_stride", c_int64),
        ("units", c_void_p),
        ("unit_count", c_int64),
        ("partials", c_void_p),
        ("tree_masks", c_void_p),
    )


class AttentionParams(Structure):
    """Mirrors `struct attention_params` in attention_step.h: scale, soft cap and sinks of one layer."""

    _fields_ = (("scale", c_double), ("softcap", c_double), ("sinks", c_void_p))


class Rotation(Structure):
    """Mirrors `struct rotation` in elementwise.h: the angles of a step's tokens."""

    _fields_ = (("dim", c_int64), ("cosine", c_void_p), ("sine", c_void_p))


class Heads(Structure):
    """Mirrors `struct heads` in elementwise.h: queries and keys, and how they are normed."""

    _fields_ = (
        *((name, c_int64) for name in ("queries", "keys", "dim", "stride", "tokens", "norm")),
        ("weight", c_void_p),
        ("eps", c_double),
    )


class CodecPool(Structure):
    """Mirrors `struct codec_pool` in codec.c: one layer of a pool."""

    _fields_ = (
        *((name, c_int64) for name in ("format", "vectors", "block", "width", "part_count")),
        ("parts", POINTER(c_int64)),
        ("layer", c_void_p),
    )


class LinearArguments(Structure):
    """Mirrors `struct linear` in linear.h: a packed layer, or one of several parts."""

    _fields_ = (
        *((name, c_int64) for name in ("format", "weights", "outputs", "inputs", "group", "offsets", "zero")),
        *((name, c_void_p) for name in ("table", "order")),
        *((name, c_int64) for name in ("splits", "partial")),
        *((name, c_void_p) for name in ("packed", "bias", "scales")),
        ("part_count", c_int64),
        *((name, c_void_p) for name in ("parts", "then", "changes")),
    )


class RouterArguments(Structure):
    """Mirrors `struct router` in experts.h: how experts are chosen and weighted."""

    _fields_ = (
        *((name, c_int64) for name in ("experts", "used", "scores", "normalized", "groups", "groups_used", "best_two")),
        ("scale", c_double),
        ("correction", c_void_p),
    )


class ExpertsArguments(Structure):
    """Mirrors `struct experts` in experts.h: the weights of a mixture."""

    _fields_ = (
        ("router", RouterArguments),
        *((name, c_int64) for name in ("format", "hidden", "activation", "first", "own", "partial")),
        *((name, c_void_p) for name in ("weight", "bias", "gate_up", "down")),
        *((name, c_void_p) for name in ("shared_gate_up", "shared_down", "shared_gate", "then")),
    )


class ExpertsBufferArguments(Structure):
    """Mirrors `struct experts_buffers` in experts.h: buffers between the operators of a mixture."""

    _fields_ = (
        *((name, c_void_p) for name in ("logits", "chosen", "slots", "shares", "shared_shares")),
        *((name, c_void_p) for name in ("x", "y", "gate_up", "gated", "shared_gate_up", "shared_gated", "shared_y")),
    )


class LatentArguments(Structure):
    """Mirrors `struct latent` in latent.h: the weights of latent attention."""

    _fields_ = (
        *((name, c_int64) for name in ("format", "heads", "query_rank", "latent_rank")),
        *((name, c_int64) for name in ("rope_dim", "nope_dim", "value_dim")),
        ("eps", c_double),
        *((name, c_void_p) for name in ("query_norm", "norm", "query", "keys", "values", "building", "then")),
    )


class RowRange(Structure):
    """Mirrors `struct rows` in latent.h: some of a step's tokens."""

    _fields_ = (("first", c_int64), ("count", c_int64))


class ExpandedSequence(Structure):
    """Mirrors `struct expanded_work` in latent.h: a work whose keys and values are built."""

    _fields_ = (("rows", RowRange), ("keys", c_int64), ("table", c_void_p), ("attention", POINTER(AttentionArguments)))


class LatentBufferArguments(Structure):
    """Mirrors `struct latent_buffers` in latent.h: buffers between the operators of latent attention."""

    _fields_ = (
        *((name, c_void_p) for name in ("queries", "absorbed", "sums", "vectors", "built")),
        ("absorbing", POINTER(RowRange)),
        ("absorbing_count", c_int64),
        ("expansions", POINTER(ExpandedSequence)),
        ("expansion_count", c_int64),
    )


class LayerArguments(Structure):
    """Mirrors `struct layer` in layer.c: its weights."""

    _fields_ = (
        *((name, c_void_p) for name in ("attention_norm", "attention_post_norm", "query_key_norm")),
        *((name, c_void_p) for name in ("mlp_norm", "mlp_post_norm")),
        *((name, LinearArguments) for name in ("query_key_value", "attention_output", "gate_up", "down")),
        ("params", AttentionParams),
        *((name, c_int64) for name in ("queries", "keys", "dim", "norm", "rotation", "activation")),
        ("experts", POINTER(ExpertsArguments)),
        ("latent", POINTER(LatentArguments)),
    )


class LoraExpansionArguments(Structure):
    """Mirrors `struct expansion` in lora.h: B of one part of a layer."""

    _fields_ = (
        *((name, c_int64) for name in ("first", "outputs", "rank_first", "rank", "columns")),
        ("b", c_void_p),
    )


class LoraArguments(Structure):
    """Mirrors `struct change` in lora.h: an adapter's change to a layer."""

    _fields_ = (
        ("columns", c_int64),
        ("a", c_void_p),
        ("parts", c_int64),
        ("expansions", POINTER(LoraExpansionArguments)),
    )


class AdaptedRowsArguments(Structure):
    """Mirrors `struct adapted_rows` in lora.h: rows by adapter."""

    _fields_ = (("groups", c_int64), *((name, c_void_p) for name in ("slots", "starts", "order")))


class AdaptersArguments(Structure):
    """Mirrors `struct adapters` in lora.h: the adapters of a step's rows."""

    _fields_ = (
        ("every", AdaptedRowsArguments),
        ("kept", AdaptedRowsArguments),
        ("columns", c_int64),
        ("shrunk", c_void_p),
    )


class StepArguments(Structure):
    """Mirrors `struct step` in layer.c: arguments shared by the layers of a step."""

    _fields_ = (
        ("format", c_int64),
        ("attention", POINTER(AttentionArguments)),
        *((name, c_int64) for name in ("tokens", "fresh_count", "row_count")),
        *((name, c_void_p) for name in ("slots", "fresh", "rows")),
        ("rotations", POINTER(Rotation)),
        ("eps", c_double),
        *((name, c_void_p) for name in ("hidden", "change", "normed", "part", "heads", "attended", "gate_up", "gated")),
        ("experts_buffers", POINTER(ExpertsBufferArguments)),
        ("latent_buffers", POINTER(LatentBufferArguments)),
        ("adapters", POINTER(AdaptersArguments)),
    )


NORM_CODES = {"none": 0, "head": 1, "all": 2}
"""`enum norm` in elementwise.h, by `HeadAttention.norm`."""
ACTIVATION_CODES = {"silu": 0, "gelu_tanh": 1, "clamped_swiglu": 2}
"""`enum activation` in elementwise.h."""

ARGUMENT_TYPES: dict[str, tuple[type, ...]] = {
    "baton_pack": (POINTER(LinearArguments), *(c_void_p,) * 4),
    "baton_linear": (POINTER(LinearArguments), c_void_p, c_long, c_long, c_void_p),
    "baton_adapt": (
        POINTER(LinearArguments),
        POINTER(AdaptersArguments),
        POINTER(AdaptedRowsArguments),
        c_void_p,
        c_long,
        c_void_p,
    ),
    "baton_attention_limits": (c_void_p,),
    "baton_attend": (POINTER(AttentionArguments), POINTER(AttentionParams), c_void_p, c_long, c_void_p, c_void_p),
    "baton_store": (POINTER(AttentionArguments), c_void_p, c_long, c_void_p, c_long, c_void_p, c_long, c_void_p),
    "baton_add_norm": (c_int, c_void_p, c_void_p, c_void_p, c_long, c_long, c_double, c_void_p),
    "baton_add_parts": (c_int, POINTER(c_void_p), c_long, c_long, c_void_p),
    "baton_angles": (c_void_p, c_long, c_void_p, c_long, c_double, c_void_p, c_void_p),
    "baton_rotate": (c_int, POINTER(Heads), POINTER(Rotation), c_void_p),
    "baton_layer_store": (POINTER(LayerArguments), POINTER(StepArguments), c_int, c_void_p),
    "baton_layer_attend": (POINTER(LayerArguments), POINTER(StepArguments), c_int, c_void_p),
    "baton_layer_mlp": (POINTER(LayerArguments), POINTER(StepArguments), c_long),
    "baton_codec_encode": (POINTER(CodecPool), c_void_p, c_long, c_int, c_void_p),
    "baton_codec_decode": (POINTER(CodecPool), c_void_p, c_int, c_long, c_void_p, c_long, c_long, c_long),
    "baton_gate": (c_int, c_int, c_void_p, c_long, c_long, c_void_p),
    "baton_route": (POINTER(RouterArguments), c_void_p, c_long, c_void_p, c_void_p),
    "baton_experts": (POINTER(ExpertsArguments), POINTER(ExpertsBufferArguments), c_void_p, c_long, c_void_p),
    "baton_mix": (POINTER(ExpertsArguments), POINTER(ExpertsBufferArguments), c_void_p, c_long, c_void_p),
    "baton_add_shared": (
        *(POINTER(ExpertsArguments), POINTER(ExpertsBufferArguments)),
        *(c_void_p, c_void_p, c_long, c_void_p),
    ),
    "baton_adjust": (c_void_p, c_long, c_char_p, c_long),
    "baton_score": (c_int, c_void_p, c_long, c_void_p, c_void_p, c_long, c_long, c_void_p),
    "baton_sample": (c_int, c_void_p, c_long, c_char_p, c_long, *[c_void_p] * 5),
}
"""Argument types of the functions without a result; the C sources document them."""


def load(target: Sequence[str] = ()) -> ctypes.CDLL:
    """Loads prebuilt operators, or compiles them first if needed. Raises `NativeError` on failure."""
    path = choose_library(tuple(target))
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"the native operators cannot be loaded: {error}") from error
    declare(library)
    return library


def declare(library: ctypes.CDLL) -> None:
    """Sets the types of the functions' arguments and results."""
    for name, arguments in ARGUMENT_TYPES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    library.baton_packed_bytes.argtypes, library.baton_packed_bytes.restype = (POINTER(LinearArguments),), c_long
    library.baton_plan.argtypes = (POINTER(AttentionArguments), *(c_void_p,) * 2, *(c_long,) * 2, *(c_void_p,) * 2)
    library.baton_plan.restype = c_long
