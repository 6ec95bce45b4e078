"""A family of models: its architectures, how their configs are read, and the names of their tensors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, structs

from engine.model.families.expert_tensors import NamedExperts, ReadExpert
from engine.model.spellings import BESIDE_TEXT


class LayerNames(Struct, frozen=True, kw_only=True):
    """Names of one layer's tensors in a checkpoint, after the layer's prefix.

    A tuple of several names means separate tensors; a tuple of one name is a tensor that has them stacked by outputs.
    """

    query_key_value: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    attention_output: str = "self_attn.o_proj"
    sinks: str = "self_attn.sinks"
    query: str = "self_attn.q_proj"  # latent attention whose queries have no latent vector
    query_down: str = "self_attn.q_a_proj"
    query_down_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    latent_down: str = "self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "self_attn.kv_a_layernorm"
    latent_up: str = "self_attn.kv_b_proj"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    attention_norm: str | None = "input_layernorm"  # before attention
    attention_post_norm: str | None = None  # after attention, before the residual addition
    mlp_norm: str | None = "post_attention_layernorm"
    mlp_post_norm: str | None = None
    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"  # full name, without a suffix
    shared_gate_up: tuple[str, ...] = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    read_expert: ReadExpert = NamedExperts()
    prefix: str = ""  # of the layer, for `read_expert`


class ModelNames(Struct, frozen=True, kw_only=True):
    """Names of a model's tensors in a checkpoint, without `.weight`."""

    embedding: str = "model.embed_tokens"
    layer: str = "model.layers.{}"  # prefix of a layer's tensors
    norm: str = "model.norm"
    head: str = "lm_head"  # empty: the model has no head, and its states are the result
    of_layer: LayerNames = LayerNames()
    ignored: tuple[str, ...] = ()  # prefixes of tensors outside of the language model
    others: tuple["ModelNames", ...] = ()  # names in checkpoints of other programs

    def in_layer(self, index: int) -> LayerNames:
        """Returns the names of the tensors of one layer, with their prefix."""
        prefix = self.layer.format(index)

        def whole(name: Any) -> Any:
            if isinstance(name, str):
                return f"{prefix}.{name}"
            return tuple(map(whole, name)) if isinstance(name, tuple) else name

        names = {field: whole(name) for field, name in structs.asdict(self.of_layer).items()}
        return LayerNames(**names | {"prefix": prefix})

    def beside_images(self) -> "ModelNames":
        """Returns the names in a model that also reads images, of which only the language model is served.

        Versions of transformers, and publishers, put the language model at three places.
        """
        named = {field: f"language_model.{getattr(self, field)}" for field in ("embedding", "layer", "norm", "head")}
        inside = {field: getattr(self, field).replace("model.", "model.language_model.", 1) for field in MODEL_FIELDS}
        places: tuple[dict[str, str], ...] = (inside, {})
        others = tuple(structs.replace(self, **place, ignored=BESIDE_TEXT) for place in places)
        return structs.replace(self, **named, ignored=BESIDE_TEXT, others=others)

    def found(self, holds: Callable[[str], bool]) -> "ModelNames":
        """Returns the names that a checkpoint uses, which `holds` some tensors; these names if it holds none."""
        places = (self, *self.others, self.without_prefix())
        return next((names for names in places if holds(f"{names.embedding}.weight")), self)

    def without_prefix(self) -> "ModelNames":
        """Returns the names in a checkpoint of the model without its head."""
        return structs.replace(self, **{name: getattr(self, name).removeprefix("model.") for name in MODEL_FIELDS})


MODEL_FIELDS = ("embedding", "layer", "norm")
"""Fields of `ModelNames` that begin with the model's prefix, unlike the output layer."""
ConfigFields = dict[str, Any]
"""Fields of a `ModelConfig` that the family decides; `engine.model.checkpoint.read_config` reads the others."""

ReadConfig = Callable[[Any, str], ConfigFields]


@dataclass(frozen=True)
class ModelFamily:
    """One entry of `engine.model.families.registry`."""

    architectures: tuple[str, ...]  # as transformers calls them
    read: ReadConfig
    """Reads transformers' config of the model with this name. Raises `ModelError` for unsupported values."""
    names: ModelNames = field(default_factory=ModelNames)
