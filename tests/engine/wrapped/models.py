"""Small random models of types that none of our families serves, for transformers' own code to compute."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from transformers import AutoConfig

from tests.variants import EYES, SIZES

SMALL: dict[str, Any] = dict(
    SIZES,
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    max_position_embeddings=512,
    pad_token_id=None,
)
EXPERTS: dict[str, Any] = dict(
    num_experts=4, num_local_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
)
LATENT: dict[str, Any] = dict(
    num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16
)
WINDOWS: dict[str, Any] = dict(
    sliding_window=9, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
)


SHARED: dict[str, Any] = dict(
    num_hidden_layers=4,
    num_kv_shared_layers=2,
    layer_types=["sliding_attention", "full_attention"] * 2,
    sliding_window=9,
    head_dim=16,
    hidden_size_per_layer_input=8,
    vocab_size_per_layer_input=256,
)
"""The last two layers share keys and values of the layers before."""
GEMMA4: dict[str, Any] = dict(SHARED, global_head_dim=32)
GEMMA4_EYES: dict[str, Any] = dict(
    hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=16
)
MINISTRAL3: dict[str, Any] = dict(
    model_type="ministral3",
    head_dim=16,
    rope_parameters={
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
)


def _make(kind: str, **changes: Any) -> Callable[[], Any]:
    return lambda: AutoConfig.for_model(
        kind, **deepcopy({**SMALL, **changes})
    )  # some configs change what they are given


WRAPPED: dict[str, Callable[[], Any]] = {
    "gpt2": _make("gpt2", n_inner=96),  # positions are learned, and products are Conv1D
    "gpt_bigcode": _make("gpt_bigcode", n_inner=96),  # multi-query
    "gpt_neox": _make("gpt_neox"),  # partial rotation, parallel residuals
    "opt": _make("opt", ffn_dim=96, word_embed_proj_dim=64),  # positions with an offset, a head that asks a decoder
    "biogpt": _make("biogpt"),
    "phi": _make("phi"),
    "persimmon": _make("persimmon"),
    "stablelm": _make("stablelm"),
    "starcoder2": _make("starcoder2"),
    "nemotron": _make("nemotron"),
    "olmo": _make("olmo", clip_qkv=0.5),
    "cohere": _make("cohere"),  # logits are scaled
    "cohere2": _make("cohere2", **WINDOWS, head_dim=16),
    "arcee": _make("arcee"),
    "apertus": _make("apertus"),
    "hunyuan_v1_dense": _make("hunyuan_v1_dense", head_dim=16),
    "nanochat": _make("nanochat"),  # logits have a soft cap
    "vaultgemma": _make("vaultgemma", **WINDOWS, head_dim=16, query_pre_attn_scalar=24),  # and scores
    "granite_swa": _make("granite_swa", **WINDOWS),  # sinks
    "minicpm3": _make("minicpm3", **LATENT),  # keys of 32 numbers, values of 16
    "longcat_flash": _make(  # two attentions a layer, identities among experts, a router that is no call
        "longcat_flash",
        **{**LATENT, **EXPERTS},
        num_layers=2,
        moe_topk=2,
        ffn_hidden_size=96,
        expert_ffn_hidden_size=32,
        zero_expert_num=1,
        head_dim=8,
    ),
    "gemma4_unified_text": _make(
        "gemma4_unified_text", **WINDOWS, head_dim=16, global_head_dim=32
    ),  # larger heads in full layers
    "gemma4_text": _make("gemma4_text", **GEMMA4),
    "gemma3n_text": _make(
        "gemma3n_text",
        **SHARED,
        intermediate_size=[96] * 4,
        activation_sparsity_pattern=[0.0] * 4,
        laurel_rank=8,
    ),
    "llama4_text": _make(
        "llama4_text",
        **EXPERTS,
        head_dim=16,
        intermediate_size_mlp=96,
        attention_chunk_size=512,
        max_position_embeddings=512,
    ),
    "mistral3": lambda: AutoConfig.for_model(  # Ministral 3, whose queries are scaled by their positions
        "mistral3", text_config=dict(SMALL, **MINISTRAL3), vision_config=dict(EYES, model_type="pixtral")
    ),
    "gemma4": lambda: AutoConfig.for_model(
        "gemma4", text_config=dict(SMALL, **GEMMA4, pad_token_id=0), vision_config=GEMMA4_EYES
    ),
    "aya_vision": lambda: AutoConfig.for_model(
        "aya_vision",
        text_config=dict(SMALL, model_type="cohere2", head_dim=16, **WINDOWS),
        vision_config=EYES,
    ),
    "mimo_v2_flash": _make("mimo_v2_flash", **EXPERTS),  # other heads in layers with windows
    "youtu": _make("youtu", **LATENT),
    "axk1": _make("axk1", **{**LATENT, **EXPERTS}, n_shared_experts=1, n_group=1, topk_group=1),
    "beam": _make("beam", **WINDOWS, head_dim=16),
    "bitnet": _make("bitnet"),
    "ctrl": _make("ctrl"),
    "hyperclovax": _make("hyperclovax"),
    "internlm3": _make("internlm3", head_dim=16),
    "jais2": _make("jais2"),
    "afmoe": _make("afmoe", **{**EXPERTS, **WINDOWS}, head_dim=16),
    "cohere2_moe": _make("cohere2_moe", **{**EXPERTS, **WINDOWS}, head_dim=16),
    "dots1": _make("dots1", **EXPERTS, n_shared_experts=1, sliding_window=None, n_group=1, topk_group=1),
    "exaone_moe": _make("exaone_moe", **{**EXPERTS, **WINDOWS}),
    "granitemoehybrid": _make(  # Granite 4 without a Mamba layer, and without experts but the shared one
        "granitemoehybrid",
        layer_types=["attention"] * 3,
        position_embedding_type="rope",
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=96,
        attention_multiplier=0.2,
        mamba_n_heads=8,
    ),
    "flex_olmo": _make("flex_olmo", **EXPERTS),
    "granitemoe": _make("granitemoe", **EXPERTS),
    "kolibri1": _make("kolibri1", **{**EXPERTS, **WINDOWS}, head_dim=16),
    "laguna": _make("laguna", **EXPERTS, head_dim=16),
    "minimax_m2": _make("minimax_m2", **EXPERTS, head_dim=16),
    "phimoe": _make("phimoe", **EXPERTS),
    "solar_open": _make("solar_open", **EXPERTS, head_dim=16),
    "jetmoe": _make("jetmoe", kv_channels=16, num_local_experts=4, num_experts_per_tok=2),  # experts of attention
    "ernie4_5_moe": _make("ernie4_5_moe", **EXPERTS, moe_k=2, moe_num_experts=4, moe_layer_start_index=1),
    "glm4_moe": _make("glm4_moe", **EXPERTS, head_dim=16, first_k_dense_replace=1, n_group=1, topk_group=1),
    "hunyuan_v1_moe": _make("hunyuan_v1_moe", head_dim=16, num_experts=4, moe_topk=2),
}
