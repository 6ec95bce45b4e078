"""What a model's config says about attention: layers, heads, windows, and from these the KV of a token and of a text.

KV bytes of a sequence = layers x min(length, window) x values of a layer x bytes of a value
values of a layer      = 2 x KV heads x head size, or with latent attention the latent vector and its rotated key
"""

from dataclasses import dataclass
from typing import Any

from checkpoints.config_fields import head_width, number

ALL_WINDOWED_TYPES = ("mistral", "mixtral", "phi3", "starcoder2")
WINDOW_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
"""Of a pattern's layers only the last has full attention, in configs without `layer_types`."""


@dataclass(frozen=True)
class AttentionSize:
    """Attention of a model. `window_layers` of its layers see `window` tokens at most; the others see the whole text.

    `layer_values`: values of KV that a token stores in a layer; `pair_values`: multiply-adds of a pair of tokens in a
    layer. `other_kinds`: kinds of layers whose memory is another, such as linear attention's states.
    """

    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    latent: bool = False
    layer_values: float = 0.0
    pair_values: float = 0.0
    window: int = 0
    window_layers: int = 0
    other_kinds: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The name of the way in which heads share keys: MHA, GQA, MQA or MLA."""
        if self.latent:
            return "MLA"
        return "MHA" if self.kv_heads == self.heads else "MQA" if self.kv_heads == 1 else "GQA"

    def layer_tokens(self, length: int) -> float:
        """Returns the stored tokens of a text of `length` tokens, as a mean over all layers."""
        if not self.window_layers:
            return float(length)
        windowed = self.window_layers / self.layers
        return (1 - windowed) * length + windowed * min(length, self.window)

    def divides_among(self, width: int) -> bool:
        """Returns whether the heads can be divided among `width` ranks."""
        return not self.heads % width and (self.latent or not self.kv_heads % width or not width % self.kv_heads)


UNKNOWN_ATTENTION = AttentionSize()


def attention_size(config: dict[str, Any]) -> AttentionSize:
    layers, heads = int(number(config, "num_hidden_layers")), int(number(config, "num_attention_heads"))
    width, latent = head_width(config), number(config, "kv_lora_rank")
    kv_heads = int(number(config, "num_key_value_heads")) or heads
    values, pair = 2 * kv_heads * width, 2 * heads * width
    if latent:
        rope = number(config, "qk_rope_head_dim")
        values = latent + rope
        pair = heads * (number(config, "qk_nope_head_dim") + rope + number(config, "v_head_dim"))
    kinds = config.get("layer_types")
    names = [str(kind) for kind in kinds] if isinstance(kinds, list) else []
    window = int(number(config, "sliding_window"))
    windowed = _windowed(config, layers, names) if window else 0
    others = tuple(sorted(set(names) - {"full_attention", "sliding_attention"}))
    hidden = int(number(config, "hidden_size"))
    return AttentionSize(
        layers, hidden, heads, kv_heads, bool(latent), values, pair, window if windowed else 0, windowed, others
    )


def _windowed(config: dict[str, Any], layers: int, names: list[str]) -> int:
    """Returns the number of layers with a window, in a config that has a window."""
    if names:
        return names.count("sliding_attention")
    if config.get("use_sliding_window") is False:
        return 0
    family = str(config.get("model_type", ""))
    if family in ALL_WINDOWED_TYPES:
        return layers
    pattern = int(number(config, "sliding_window_pattern")) or WINDOW_PATTERNS.get(family, 0)
    return layers - layers // pattern if pattern > 1 else 0
