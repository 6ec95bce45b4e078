"""Makes configs of small dense models by hand, for tests that load no weights."""

from engine.model.config import DenseMLP, HeadAttention, LayerConfig, ModelConfig
from engine.model.rope import Rope


def dense(
    layers: int = 3,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 4,
    hidden: int = 8,
    intermediate: int = 8,
    vocabulary: int = 10,
    window: int = 0,
) -> ModelConfig:
    """Describes a model whose layers are all alike."""
    return ModelConfig(
        name="small",
        architecture="LlamaForCausalLM",
        vocab_size=vocabulary,
        hidden_size=hidden,
        layers=(LayerConfig(attention(heads, kv_heads, head_dim, window=window), DenseMLP(intermediate=intermediate)),)
        * layers,
        norm_eps=1e-6,
        max_model_len=64,
        eos_token_ids=(),
    )


def attention(heads: int, kv_heads: int, head_dim: int, *, window: int = 0, softcap: float = 0.0) -> HeadAttention:
    """Describes plain attention with rotated heads."""
    return HeadAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=Rope(dim=head_dim),
        window=window,
        softcap=softcap,
    )
