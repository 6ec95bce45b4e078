"""Lists the small models of the golden tests: every architecture, and every option that changes what is computed."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from transformers import (
    CwmConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Ernie4_5Config,
    Exaone4Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    Glm4vConfig,
    Glm46VConfig,
    GlmConfig,
    GptOssConfig,
    GraniteConfig,
    HeliumConfig,
    InternVLConfig,
    LlamaConfig,
    LlavaConfig,
    MinistralConfig,
    Mistral3Config,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    Phi3Config,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
    SeedOssConfig,
    SmolLM3Config,
)

SIZES: dict[str, Any] = dict(
    vocab_size=320,
    hidden_size=128,
    intermediate_size=192,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
    initializer_range=0.1,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=None,
)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.25 * pair for pair in range(16)],
    "long_factor": [3.0 + pair for pair in range(16)],
    "factor": 8.0,
    "attention_factor": 1.2,
}
FOUR = ["sliding_attention", "full_attention"] * 2
GEMMA3: dict[str, Any] = dict(
    head_dim=48,
    query_pre_attn_scalar=24,
    sliding_window=9,
    layer_types=["sliding_attention"] * 3 + ["full_attention"],
    rope_parameters={
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
)
EYES = dict(
    model_type="siglip_vision_model",
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=28,
    patch_size=14,
)
QWEN_EYES: dict[str, Any] = dict(
    depth=1, hidden_size=32, intermediate_size=32, num_heads=2, patch_size=14, out_hidden_size=128
)
MULTIMODAL_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}

LATENT: dict[str, Any] = dict(
    num_key_value_heads=4,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=20,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=40,
    n_shared_experts=2,
    pad_token_id=None,
)
"""Sizes of DeepSeek's attention and experts."""
EXPERTS: dict[str, Any] = dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=40)


def _make(kind: Callable[..., Any], **changes: Any) -> Callable[[], Any]:
    return lambda: kind(**deepcopy({**SIZES, **changes}))  # some configs change what they are given


VARIANTS: dict[str, Callable[[], Any]] = {
    "llama": _make(LlamaConfig),
    "llama-multi-head": _make(LlamaConfig, num_key_value_heads=4),
    "llama-multi-query": _make(LlamaConfig, num_key_value_heads=1),
    "llama-biases": _make(LlamaConfig, attention_bias=True, mlp_bias=True),
    "llama-tied": _make(LlamaConfig, tie_word_embeddings=True),
    "llama-odd-head": _make(LlamaConfig, head_dim=22, num_attention_heads=8, num_key_value_heads=2),
    "llama-linear-rope": _make(
        LlamaConfig, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "llama-llama3-rope": _make(LlamaConfig, rope_parameters=LLAMA3),
    "llama-yarn-rope": _make(LlamaConfig, rope_parameters=YARN),
    "mistral": _make(MistralConfig, sliding_window=None),
    "mistral-window": _make(MistralConfig, sliding_window=13, head_dim=32),
    "mixtral": _make(MixtralConfig, num_local_experts=5, num_experts_per_tok=2, sliding_window=None),
    "mixtral-window": _make(MixtralConfig, num_local_experts=4, num_experts_per_tok=4, sliding_window=13),
    "mistral3-images": lambda: Mistral3Config(
        text_config={**SIZES, "model_type": "mistral", "head_dim": 16, "sliding_window": None},
        vision_config={**EYES, "model_type": "pixtral"},
        tie_word_embeddings=False,
    ),
    "ministral": _make(MinistralConfig, head_dim=32, sliding_window=11, layer_types=FOUR[1:] + FOUR[:1]),
    "qwen2": _make(Qwen2Config),
    "qwen2-tied-yarn": _make(
        Qwen2Config, tie_word_embeddings=True, rope_parameters={**YARN, "beta_fast": 16.0, "attention_factor": 1.1}
    ),
    "qwen2-window": _make(Qwen2Config, use_sliding_window=True, sliding_window=16, max_window_layers=2),
    "qwen2-unused-window": _make(Qwen2Config, use_sliding_window=False, sliding_window=16, max_window_layers=2),
    "qwen3": _make(Qwen3Config, head_dim=32),
    "qwen3-biases-tied": _make(Qwen3Config, head_dim=16, attention_bias=True, tie_word_embeddings=True),
    "qwen3-layer-types": _make(
        Qwen3Config,
        head_dim=16,
        use_sliding_window=True,
        sliding_window=9,
        layer_types=FOUR,
    ),
    "qwen2.5-vl": lambda: Qwen2_5_VLConfig(
        text_config={**SIZES, "rope_parameters": {**MULTIMODAL_ROPE, "mrope_section": [6, 5, 5]}},
        vision_config={**QWEN_EYES, "fullatt_block_indexes": [0]},
        tie_word_embeddings=False,
    ),
    "qwen3-vl-tied": lambda: Qwen3VLConfig(
        text_config={**SIZES, "head_dim": 32, "rope_parameters": {**MULTIMODAL_ROPE, "mrope_section": [6, 5, 5]}},
        vision_config={**QWEN_EYES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        tie_word_embeddings=True,
    ),
    "qwen3-vl-moe": lambda: Qwen3VLMoeConfig(
        text_config={
            **SIZES,
            **EXPERTS,
            "head_dim": 32,
            "mlp_only_layers": [1],
            "rope_parameters": {**MULTIMODAL_ROPE, "mrope_section": [6, 5, 5]},
        },
        vision_config={**QWEN_EYES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        tie_word_embeddings=False,
    ),
    "glm4v": lambda: Glm4vConfig(
        text_config={
            **SIZES,
            "rope_parameters": {**MULTIMODAL_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [4, 2, 2]},
        },
        vision_config={**QWEN_EYES, "image_size": 28},
        tie_word_embeddings=False,
    ),
    "internvl-qwen3": lambda: InternVLConfig(
        text_config={**SIZES, "model_type": "qwen3", "head_dim": 16},
        vision_config={**EYES, "model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]},
        tie_word_embeddings=False,
    ),
    "glm46v": lambda: Glm46VConfig(
        text_config={
            **SIZES,
            "rope_parameters": {**MULTIMODAL_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [4, 2, 2]},
        },
        vision_config={**QWEN_EYES, "image_size": 28},
    ),
    "llava": lambda: LlavaConfig(
        text_config={**SIZES, "model_type": "llama"}, vision_config=EYES, tie_word_embeddings=False
    ),
    "gemma": _make(GemmaConfig, head_dim=32, tie_word_embeddings=True),
    "gemma2": _make(
        Gemma2Config,
        head_dim=48,
        query_pre_attn_scalar=24,
        sliding_window=13,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0,
    ),
    "gemma2-uncapped": _make(
        Gemma2Config,
        head_dim=32,
        attention_bias=True,
        sliding_window=64,
        layer_types=FOUR[1:] + FOUR[:1],
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    ),
    "gemma3": _make(Gemma3TextConfig, **GEMMA3),
    "gemma3-images": lambda: Gemma3Config(
        text_config={**SIZES, **GEMMA3, "tie_word_embeddings": True}, vision_config=EYES, mm_tokens_per_image=4
    ),
    "phi3": _make(Phi3Config, sliding_window=17, pad_token_id=None),
    "phi3-longrope": _make(  # of texts of more than one token
        Phi3Config, rope_parameters=LONGROPE, original_max_position_embeddings=1, pad_token_id=None
    ),
    "phi4-shortrope": _make(  # three quarters of a head, and no text that is too long for the original
        Phi3Config,
        num_attention_heads=2,
        num_key_value_heads=1,
        rope_parameters={
            **LONGROPE,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0 + 0.25 * pair for pair in range(24)],
            "long_factor": [100.0] * 24,
            "attention_factor": None,
        },
        original_max_position_embeddings=512,
        pad_token_id=None,
        tie_word_embeddings=True,
    ),
    "granite": _make(
        GraniteConfig,
        embedding_multiplier=3.0,
        attention_multiplier=0.1,
        residual_multiplier=0.6,
        logits_scaling=2.5,
        attention_bias=True,
        mlp_bias=True,
    ),
    "olmo2": _make(Olmo2Config, pad_token_id=None),
    "olmo2-biases": _make(Olmo2Config, num_key_value_heads=4, attention_bias=True, pad_token_id=None),
    "olmo3": _make(
        Olmo3Config,
        sliding_window=11,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        rope_parameters={
            "full_attention": YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        pad_token_id=None,
    ),
    "smollm3": _make(SmolLM3Config, no_rope_layers=[1, 0, 1, 0], tie_word_embeddings=True, pad_token_id=None),
    "smollm3-window": _make(
        SmolLM3Config,
        no_rope_layer_interval=2,
        use_sliding_window=True,
        sliding_window=12,
        attention_bias=True,
        mlp_bias=True,
        pad_token_id=None,
    ),
    "glm": _make(GlmConfig, head_dim=32, pad_token_id=None, eos_token_id=7),
    "glm4": _make(
        Glm4Config,
        head_dim=32,
        attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25},
        pad_token_id=None,
        eos_token_id=7,
    ),
    "qwen3-moe": _make(Qwen3MoeConfig, head_dim=32, **EXPERTS),
    "qwen3-moe-some-dense": _make(
        Qwen3MoeConfig, **{**EXPERTS, "norm_topk_prob": True}, decoder_sparse_step=2, mlp_only_layers=[3]
    ),
    "qwen2-moe": _make(Qwen2MoeConfig, **EXPERTS, shared_expert_intermediate_size=56),
    "qwen2-moe-windows": _make(
        Qwen2MoeConfig,
        **{**EXPERTS, "num_experts_per_tok": 1},
        norm_topk_prob=True,
        qkv_bias=False,
        shared_expert_intermediate_size=56,
        use_sliding_window=True,
        sliding_window=12,
        max_window_layers=3,
        decoder_sparse_step=2,
    ),
    "olmoe": _make(OlmoeConfig, num_experts=6, num_experts_per_tok=2, pad_token_id=None),
    "olmoe-normalized": _make(
        OlmoeConfig, num_experts=6, num_experts_per_tok=3, norm_topk_prob=True, attention_bias=True, pad_token_id=None
    ),
    "gpt-oss": _make(GptOssConfig, head_dim=32, num_local_experts=6, num_experts_per_tok=2, sliding_window=11),
    "gpt-oss-unbiased": _make(
        GptOssConfig,
        head_dim=16,
        num_local_experts=3,
        num_experts_per_tok=3,
        sliding_window=16,
        layer_types=FOUR[1:] + FOUR[:1],
        attention_bias=False,
        rope_parameters=YARN,
    ),
    "exaone4": _make(Exaone4Config, sliding_window=10, sliding_window_pattern=2, pad_token_id=None),
    "exaone4-full": _make(Exaone4Config, sliding_window=None, layer_types=["full_attention"] * 4, pad_token_id=None),
    "seed-oss": _make(SeedOssConfig, head_dim=16, attention_out_bias=True, mlp_bias=True, pad_token_id=None),
    "cwm": _make(CwmConfig, head_dim=32, sliding_window=14, rope_parameters=LLAMA3, bos_token_id=1),
    "ernie4.5": _make(Ernie4_5Config, head_dim=32, use_bias=True, pad_token_id=None),
    "helium": _make(HeliumConfig, head_dim=32, num_attention_heads=4, pad_token_id=None),
    "deepseek-v2": _make(
        DeepseekV2Config,
        **LATENT,
        q_lora_rank=24,
        first_k_dense_replace=1,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.5,
    ),
    "deepseek-v2-lite": _make(
        DeepseekV2Config,
        **LATENT,
        q_lora_rank=None,
        first_k_dense_replace=2,
        rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    ),
    "deepseek-v3": _make(
        DeepseekV3Config,
        **LATENT,
        q_lora_rank=24,
        first_k_dense_replace=1,
        n_group=2,
        topk_group=1,
        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "deepseek-v3-dense": _make(
        DeepseekV3Config,
        **{**LATENT, "num_key_value_heads": 3},
        q_lora_rank=24,
        first_k_dense_replace=4,
        attention_bias=True,
        rope_interleave=False,
        hidden_size=96,
        num_attention_heads=3,
    ),
}
"""Every architecture, and every option of one that changes what is computed."""
