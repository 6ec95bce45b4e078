"""Steps of models in small shapes beside the rate of memory: what is printed, and which names are refused."""

import pytest

from benchmarks.engine.kinds import KINDS, Kind, chosen, measure
from contracts.errors import ConfigError

SMALL = {"vocab_size": 64, "hidden_size": 96, "num_hidden_layers": 2, "intermediate_size": 64}
SIZES = {
    "llama": {"num_attention_heads": 6},
    "qwen3_moe": {"num_attention_heads": 4, "head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32},
    "deepseek_v3": {"num_attention_heads": 4, "num_key_value_heads": 4, "first_k_dense_replace": 2},
}


def small(kind: Kind) -> Kind:
    return kind._replace(settings=kind.settings | SMALL | SIZES[kind.family])


def test_a_line_for_each_kind_and_batch(capsys: pytest.CaptureFixture[str]) -> None:
    measure({name: small(kind) for name, kind in KINDS.items()}, (1, 2), rounds=1, threads=2)
    lines = capsys.readouterr().out.splitlines()
    assert "a sum reads" in lines[0] and lines[2].startswith("| weights | batch | MB read |")
    assert [tuple(line.split(" | ")[:2]) for line in lines[4:]] == [
        (f"| {name}", str(batch)) for name in KINDS for batch in (1, 2)
    ]


def test_kinds_are_chosen_by_name() -> None:
    assert chosen("all") == KINDS and list(chosen("latent,int4")) == ["latent", "int4"]
    with pytest.raises(ConfigError, match="int5 is none of bf16, int8"):
        chosen("int4,int5")
