"""What is supported is read right; what is not is refused by name."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from contracts.errors import ConfigError, ModelError
from engine.model.checkpoint.read_config import read_config
from engine.model.config import ExpertsMLP, computation
from engine.model.families.reading import checked, word_of
from engine.model.families.registry import SUPPORTED_ARCHITECTURES
from launcher.options import ROOT
from tests.variants import LLAMA3, LONGROPE, SIZES, VARIANTS, YARN
from tests.waiting import DEADLINE_S

LLAMA = {**SIZES, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN2 = {**SIZES, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}

MIXTRAL = {**SIZES, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
FIRST_READ = """
import sys
from pathlib import Path
from engine.model.checkpoint.read_config import read_config

print(read_config(Path(sys.argv[1])))
print([name for name in ("torch._dynamo", "transformers.core_model_loading") if name in sys.modules])
from transformers.activations import ACT2FN
print("silu" in ACT2FN)
"""
ROUTED = ExpertsMLP(experts=12, used=4, intermediate=8, groups=4, groups_used=2)


def raw(variant: str) -> dict[str, Any]:
    """What config.json says of a variant."""
    config = VARIANTS[variant]()
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    return {**json.loads(config.to_json_string(use_diff=False)), "architectures": [architecture]}


def write(directory: Path, config: dict[str, Any], **changes: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    return directory


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**LLAMA, "architectures": ["GPT2LMHeadModel"]}, ["GPT2LMHeadModel", *SUPPORTED_ARCHITECTURES]),
        ({**LLAMA, "architectures": None}, ["llama without architectures", *SUPPORTED_ARCHITECTURES]),
        ({**LLAMA, "architectures": ["Qwen2ForCausalLM", "LlamaForCausalLM"]}, ["Qwen2ForCausalLM, LlamaForCausalLM"]),
        ({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}, ["quantized with bitsandbytes", "int4"]),
        ({**LLAMA, "hidden_act": "gelu"}, ["activation gelu", "silu"]),
        ({**LLAMA, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, ["dynamic", "yarn"]),
        ({**LLAMA, "rope_scaling": {"rope_type": "nonsense"}}, ["rope type nonsense", "llama3"]),
        ({**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ["config.json", "factor"]),
        ({**LLAMA, "rope_theta": 1e4, "partial_rotary_factor": 0.5}, ["whole heads", "partial_rotary_factor of 0.5"]),
        ({**raw("glm"), "head_dim": 30}, ["15 rotated numbers", "partial_rotary_factor"]),
        ({**QWEN2, "layer_types": ["full_attention", "chunked_attention"] * 2}, ["chunked_attention"]),
        ({**QWEN2, "layer_types": ["full_attention"] * 3}, ["layer"]),
        ({**QWEN2, "layer_types": ["sliding_attention"] * 4}, ["sliding_window"]),
        ({**LLAMA, "num_key_value_heads": 3}, ["4 heads", "3 KV heads"]),
        ({**LLAMA, "head_dim": 15}, ["15"]),
        ({**LLAMA, "hidden_size": "wide"}, ["config.json is not valid"]),
        ({**raw("gemma2"), "hidden_activation": "relu"}, ["activation relu", "gelu_pytorch_tanh"]),
        ({**raw("gemma2"), "use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
        ({**raw("gemma3"), "attn_logit_softcapping": 50.0}, ["attn_logit_softcapping 50.0"]),
        ({**raw("gemma3"), "rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}, ["rope type dynamic"]),
        ({**raw("phi3-longrope"), "rope_parameters": {**LONGROPE, "long_factor": [1.0] * 15}}, ["long_factor", "16"]),
        ({**raw("phi3"), "rope_scaling": {"type": "nonsense"}}, ["longrope", "nonsense"]),
        ({**raw("smollm3"), "no_rope_layers": [1, 0, 1]}, ["no_rope_layers has 3 entries for 4 layers"]),
        ({**raw("gpt-oss"), "swiglu_limit": 5.0}, ["swiglu_limit 5.0", "7.0"]),
        ({**raw("gpt-oss"), "quantization_config": {"quant_method": "quark"}}, ["quantized with quark", "mxfp4"]),
        ({**raw("gpt-oss"), "num_experts_per_tok": 7}, ["7 of 6 experts"]),
        ({**raw("olmoe"), "clip_qkv": 8.0}, ["clip_qkv 8.0"]),
        ({**raw("qwen2-moe"), "num_experts_per_tok": 8}, ["8 of 7 experts"]),
        ({**raw("olmo3"), "layer_types": ["sliding_attention"] * 4, "sliding_window": None}, ["no sliding_window"]),
        ({**MIXTRAL, "num_local_experts": 4, "num_experts_per_tok": 5}, ["5 of 4 experts"]),
        ({**MIXTRAL, "num_local_experts": 0}, ["2 of 0 experts"]),
        ({**raw("deepseek-v2"), "topk_method": "noaux_tc"}, ["topk_method noaux_tc", "greedy, group_limited_greedy"]),
        ({**raw("deepseek-v2"), "norm_topk_prob": True}, ["norm_topk_prob"]),
        ({**raw("deepseek-v2"), "n_group": 3}, ["8 experts", "3 groups"]),
        ({**raw("deepseek-v2"), "mlp_bias": True}, ["mlp_bias"]),
        ({**raw("deepseek-v2-lite"), "attention_bias": True}, ["attention_bias", "q_lora_rank"]),
        ({**raw("deepseek-v3"), "scoring_func": "softmax"}, ["scoring_func softmax", "sigmoid"]),
        ({**raw("deepseek-v3"), "moe_layer_freq": 2}, ["moe_layer_freq 2", "1"]),
        ({**raw("deepseek-v3"), "num_key_value_heads": 2}, ["2 KV heads for 4 heads"]),
        ({**raw("deepseek-v3"), "qk_rope_head_dim": 7}, ["7 rotated numbers"]),
        ({**raw("deepseek-v3"), "num_experts_per_tok": 5}, ["5 of 4 experts"]),
        ({**raw("deepseek-v3"), "hidden_act": "relu"}, ["activation relu"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_config(write(tmp_path, config))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"groups": 5}, "12 experts cannot be divided among 5 groups"),
        ({"groups": 0}, "12 experts cannot be divided among 0 groups"),
        ({"groups_used": 5}, "5 of 4 groups of experts"),
        ({"groups_used": 0}, "0 of 4 groups of experts"),
        ({"used": 7}, "7 of 6 experts"),
        ({"used": 0}, "0 of 6 experts"),
        ({"groups": 12, "groups_used": 6, "group_score": "best_two"}, "groups of 1 experts have no best two"),
    ],
)
def test_routers_whose_numbers_contradict_each_other_are_refused(changes: dict[str, Any], words: str) -> None:
    assert checked(ROUTED, "model") == ROUTED
    with pytest.raises(ModelError, match=f"^model: {words}"):
        checked(structs.replace(ROUTED, **changes), "model")


def test_an_unknown_word_is_refused_with_those_that_are_known() -> None:
    assert word_of("b", {"a": 1, "b": 2}, "scoring_func", "model") == 2
    with pytest.raises(ModelError, match=r"^model: scoring_func c is not supported; supported: a, b$"):
        word_of("c", {"a": 1, "b": 2}, "scoring_func", "model")


@pytest.mark.parametrize(
    ("content", "word"),
    [(None, "has no config.json"), ("{", "cannot be read"), ("[]", "JSON object"), ("\xff", "read")],
)
def test_a_missing_or_broken_config_is_one_sentence(content: str | None, word: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=word):
        read_config(tmp_path)


def test_a_longer_context_than_the_models_own_is_refused(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    assert read_config(tmp_path).max_model_len == 1024
    assert read_config(tmp_path, 100).max_model_len == 100
    with pytest.raises(ConfigError, match=r"--max-model-len: 1025.*1024"):
        read_config(tmp_path, 1025)


def test_the_spellings_of_older_checkpoints_mean_the_same(tmp_path: Path) -> None:
    """Transformers 5 writes `rope_parameters`; older checkpoints have `rope_theta`, and `rope_scaling` with `type`."""
    (new,) = read_config(write(tmp_path, LLAMA, rope_parameters=LLAMA3)).ropes
    scaling = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    assert read_config(write(tmp_path, LLAMA, rope_theta=LLAMA3["rope_theta"], rope_scaling=scaling)).ropes == (new,)
    named = {("type" if key == "rope_type" else key): value for key, value in YARN.items()}
    assert read_config(write(tmp_path, LLAMA, rope_scaling=named)).ropes[0].type == "yarn"


def test_ends_of_text_come_from_the_generation_config(tmp_path: Path) -> None:
    write(tmp_path, LLAMA, eos_token_id=7)
    assert read_config(tmp_path).eos_token_ids == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert read_config(tmp_path).eos_token_ids == (7, 9)


@pytest.mark.parametrize(
    ("variant", "windows"),
    [
        ("qwen2-window", (0, 0, 16, 16)),
        ("qwen2-unused-window", (0, 0, 0, 0)),
        ("qwen3-layer-types", (9, 0, 9, 0)),
        ("mistral-window", (13, 13, 13, 13)),
        ("gemma2", (13, 0, 13, 0)),
        ("gemma3", (9, 9, 9, 0)),
        ("phi3", (17, 17, 17, 17)),
        ("smollm3-window", (0, 12, 0, 12)),
    ],
)
def test_windows_are_per_layer(variant: str, windows: tuple[int, ...], tmp_path: Path) -> None:
    assert read_config(write(tmp_path, raw(variant))).windows == windows


def test_layers_may_differ_in_their_rotation(tmp_path: Path) -> None:
    gemma = read_config(write(tmp_path, raw("gemma3")))
    assert [rope.theta for rope in gemma.ropes] == [1e4, 1e6]
    assert [layer.attention.rope for layer in gemma.layers] == [gemma.ropes[0]] * 3 + [gemma.ropes[1]]
    smollm = read_config(write(tmp_path, raw("smollm3")))
    assert [layer.attention.rope for layer in smollm.layers] == [*smollm.ropes, None] * 2


@pytest.mark.parametrize(("longest", "long"), [(512, False), (513, True), (0, True)])
def test_the_longest_text_decides_which_of_longropes_factors_there_are(
    longest: int, long: bool, tmp_path: Path
) -> None:
    """All texts then have the same, so that their keys can be shared; workers of other lengths do not share any."""
    config = read_config(write(tmp_path, raw("phi4-shortrope")), longest)
    (rope,) = config.ropes
    assert rope.factors == ((100.0,) * 24 if long else tuple(1.0 + 0.25 * pair for pair in range(24)))
    assert (computation(config) == computation(read_config(tmp_path, 100))) != long


def test_a_type_that_transformers_does_not_know_is_read_as_its_twin(tmp_path: Path) -> None:
    """Kimi K2's config is DeepSeek V3's under another name, and names code of its own, which nobody runs."""
    known = raw("deepseek-v3")
    expected = read_config(write(tmp_path, known))
    twin = {**known, "model_type": "kimi_k2", "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}
    assert read_config(write(tmp_path, twin)) == expected
    with pytest.raises(ModelError, match=r"config\.json is not valid"):
        read_config(write(tmp_path, twin, model_type="kimi_k9"))


def test_a_process_that_reads_a_config_loads_no_code_of_models(tmp_path: Path) -> None:
    """It reads the same as a process that has loaded it, and finds it where it needs it later."""
    command = [sys.executable, "-c", FIRST_READ, str(write(tmp_path, LLAMA))]
    out = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S).stdout
    assert out == f"{read_config(tmp_path)}\n[]\nTrue\n"
