"""A worker has as many GPUs as hold the weights and one text of full length, by files and data sheets alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from checkpoints.model_size import ModelSize, model_size
from contracts.errors import ConfigError
from infra.config.engine import EngineOptions
from launcher.devices.rank_width import least_width, refuse_wider, with_width
from pricing.roofline.gpu_rates import GPU_RATES

H100, L4 = GPU_RATES["H100"], GPU_RATES["L4"]
LLAMA_70B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
LLAMA_8B = LLAMA_70B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def size_of(directory: Path, config: dict[str, Any], quantization: str = "none") -> ModelSize:
    (directory / "config.json").write_text(json.dumps(config))
    return model_size(directory, "auto", quantization)


@pytest.mark.parametrize(
    ("config", "quantization", "gpu", "length", "most", "width"),
    [
        (LLAMA_70B, "none", H100, 131072, 8, 4),  # 2 hold the weights and 4,000 tokens
        (LLAMA_70B, "none", H100, 2048, 8, 2),
        (LLAMA_70B, "none", GPU_RATES["B200"], 8192, 8, 1),
        (LLAMA_70B, "int4", H100, 8192, 8, 1),
        (LLAMA_70B, "none", L4, 8192, 8, 8),
        (LLAMA_70B, "none", L4, 8192, 4, 4),  # none of these holds the weights, which a worker refuses
        (LLAMA_8B, "none", H100, 131072, 8, 1),
        (LLAMA_8B, "none", L4, 131072, 4, 2),
        (LLAMA_8B, "none", L4, 131072, 1, 1),  # what is left holds shorter texts
        (LLAMA_8B | {"num_attention_heads": 25, "head_dim": 128}, "none", L4, 131072, 8, 1),  # 25 heads are not divided
        (LLAMA_70B | {"num_key_value_heads": 1}, "none", H100, 2048, 8, 2),
    ],
)
def test_the_smallest_width_that_holds_a_text_of_full_length(
    config: dict[str, Any], quantization: str, gpu: Any, length: int, most: int, width: int, tmp_path: Path
) -> None:
    assert least_width(size_of(tmp_path, config, quantization), gpu, length, most) == width


def test_kv_of_one_head_is_on_every_rank(tmp_path: Path) -> None:
    """Wider workers have no more room for it."""
    size = size_of(tmp_path, LLAMA_8B | {"num_key_value_heads": 1, "num_hidden_layers": 320, "vocab_size": 1})
    long = int(15e9 / size.token_bytes)
    small = replace_weights(size, 1e9)
    assert least_width(small, L4, long, 8) == 1
    assert least_width(small, L4, 2 * long, 8) == 1, "the smallest that holds the weights: no width holds the text"


def replace_weights(size: ModelSize, weights_bytes: float) -> ModelSize:
    return ModelSize(size.parameters, weights_bytes, size.token_bytes, size.heads, size.kv_parts, size.max_tokens)


def test_the_choice_is_said_in_one_line_and_the_users_stays(tmp_path: Path) -> None:
    def size() -> ModelSize:
        return size_of(tmp_path, LLAMA_70B)

    engine, said = with_width(EngineOptions(), H100, 8, size)
    assert (engine.width("prefill"), engine.width("decode")) == (4, 4)
    assert said == (
        "4 GPUs for each worker, since the weights take 129.5GiB and the KV of 131072 tokens 40.0GiB;"
        " --tensor-parallel changes it"
    )
    for asked in (EngineOptions(tensor_parallel=1), EngineOptions(prefill_tp=2, decode_tp=8)):
        assert with_width(asked, H100, 8, size) == (asked, "")
    engine, _ = with_width(EngineOptions(decode_tp=2), H100, 8, size)
    assert engine == replace(EngineOptions(decode_tp=2), tensor_parallel=4)


def test_a_width_that_no_host_has_is_refused() -> None:
    refuse_wider(EngineOptions(tensor_parallel=4, decode_tp=2), 4, "this host")
    for engine, option in (
        (EngineOptions(tensor_parallel=8), "--tensor-parallel"),
        (EngineOptions(tensor_parallel=4, prefill_tp=8), "--prefill-tp"),
    ):
        why = (
            f"{option}: 8: all ranks of a worker are on one host, and this host has 4 GPUs: widths across hosts and"
            " pipeline parallelism are not offered"
        )
        with pytest.raises(ConfigError, match=f"^{why}$"):
            refuse_wider(engine, 4, "this host")
