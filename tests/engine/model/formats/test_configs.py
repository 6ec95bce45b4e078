"""Whatever a `quantization_config` says, it is read or refused in a sentence."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import ModelError
from engine.model.formats.registry import format_of

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 200), st.floats(), st.text(max_size=3))
WORDS = st.sampled_from(["gptq", "gemm", "Linear", "re:(", "re:a", "group", "block", "int", "float", "pack-quantized"])
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3) | WORDS, inner, max_size=2),
    max_leaves=4,
)
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "actorder": None}
BASES: tuple[dict[str, Any], ...] = (
    {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "backend": None},
    {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"a": {"bits": 8}}, "pack_dtype": "int32"},
    {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3", "scale_fmt": None},
    {"quant_method": "modelopt", "quant_algo": "FP8", "quantized_layers": {"a": {"quant_algo": "FP8"}}},
    {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
    {
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        "bits": 4,
        "group_size": 32,
        "data_type": "int",
        "act_bits": 16,
        "extra_config": {"a": {"bits": 8}},
    },
    {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"a": {"targets": ["Linear"], "weights": WEIGHTS, "format": None}},
        "sparsity_config": {"format": "dense"},
        "transform_config": {},
        "kv_cache_scheme": None,
    },
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Lists where values are, in a tree of dictionaries and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Returns the tree with another value at a place."""
    if not path:
        return other
    if isinstance(value, dict):
        return {key: put(each, path[1:], other) if key == path[0] else each for key, each in value.items()}
    return [put(each, path[1:], other) if index == path[0] else each for index, each in enumerate(value)]


@settings(max_examples=200)
@given(st.sampled_from(BASES).flatmap(lambda base: st.tuples(st.just(base), st.sampled_from(places(base)), VALUES)))
def test_any_value_anywhere_is_read_or_refused(drawn: tuple[dict[str, Any], tuple[Any, ...], Any]) -> None:
    base, path, value = drawn
    try:
        found = format_of({"quantization_config": put(base, path, value)}, "m")
    except ModelError as error:
        assert str(error).startswith("m: ") and "\n" not in str(error)
    else:
        found.settings()
        found.weights_per_element("model.layers.0.mlp.up_proj.weight", "BF16")


def test_all_of_them_are_read_as_they_are() -> None:
    for base in BASES:
        assert format_of({"quantization_config": base}, "m").settings()
