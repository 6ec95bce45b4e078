"""gpt-oss: attention with sinks, a window in every other layer, experts with clamped gates.

OpenAI 2025 (https://arxiv.org/abs/2508.10925). One tensor has all experts of a layer, with rows of gate and up
alternating: MXFP4 in OpenAI's checkpoints, floats and transposed in fine-tuned ones. GGUF files have tensors of each
expert's gate and up.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from contracts.errors import ModelError
from engine.model.config import ExpertsMLP, LayerConfig
from engine.model.families.expert_tensors import CheckpointTensors, ExpertTensors, NamedExperts
from engine.model.families.family import ConfigFields, LayerNames, ModelFamily, ModelNames
from engine.model.families.reading import checked, head_attention, rope_of, windows_of
from engine.model.mxfp4 import MX_BLOCK_VALUES, unpacked
from engine.model.quantized import Weight, rows

ALPHA, LIMIT = 1.702, 7.0
"""Constants of the activation `clamped_swiglu`."""


def read(config: Any, name: str) -> ConfigFields:
    if (config.hidden_act, config.swiglu_alpha, config.swiglu_limit) != ("silu", ALPHA, LIMIT):
        settings = (
            f"hidden_act {config.hidden_act}, swiglu_alpha {config.swiglu_alpha}, swiglu_limit {config.swiglu_limit}"
        )
        raise ModelError(f"{name}: {settings} are not supported; supported: silu, {ALPHA}, {LIMIT}")
    rope, bias = rope_of(config, name), bool(config.attention_bias)
    mlp = ExpertsMLP(
        experts=int(config.num_local_experts),
        used=int(config.num_experts_per_tok),
        intermediate=int(config.intermediate_size),
        activation="clamped_swiglu",
        bias=True,
        router_bias=True,
        scores="softmax_of_used",
    )
    attentions = (
        head_attention(config, name, rope, window=window, bias=bias, output_bias=bias, sinks=True)
        for window in windows_of(config, name)
    )
    return {"layers": tuple(LayerConfig(attention, checked(mlp, name)) for attention in attentions)}


def read_expert(tensors: CheckpointTensors, prefix: str, mlp: ExpertsMLP, hidden: int, expert: int) -> ExpertTensors:
    width = 2 * mlp.intermediate
    own = f"{prefix}.mlp.experts.{expert}"
    if tensors.holds(f"{own}.gate_proj.weight"):
        biases = [tensors.tensor(f"{own}.{name}_proj.bias", (mlp.intermediate,)) for name in ("gate", "up")]
        return replace(
            NamedExperts()(tensors, prefix, mlp, hidden, expert),
            gate_up_bias=torch.cat(biases),
            down_bias=tensors.tensor(f"{own}.down_proj.bias", (hidden,)),
        )

    def part(name: str, *shape: int, packed: bool = False) -> Tensor:
        return tensors.part(f"{prefix}.mlp.experts.{name}", (mlp.experts, *shape), expert, packed=packed)

    def weight(name: str, outputs: int, inputs: int) -> Weight:
        if not tensors.holds(f"{prefix}.mlp.experts.{name}_blocks"):
            return part(name, inputs, outputs).t()
        blocks = part(f"{name}_blocks", outputs, inputs // MX_BLOCK_VALUES, MX_BLOCK_VALUES // 2, packed=True)
        return unpacked(blocks, part(f"{name}_scales", outputs, inputs // MX_BLOCK_VALUES, packed=True))

    in_turns, bias = weight("gate_up_proj", width, hidden), part("gate_up_proj_bias", width)
    return ExpertTensors(
        gate_up=(rows(in_turns, slice(0, None, 2)), rows(in_turns, slice(1, None, 2))),
        down=weight("down_proj", hidden, mlp.intermediate),
        gate_up_bias=bias.view(-1, 2).t().flatten(),
        down_bias=part("down_proj_bias", hidden),
    )


GPT_OSS = ModelFamily(
    ("GptOssForCausalLM",),
    read,
    ModelNames(of_layer=LayerNames(router="mlp.router", read_expert=read_expert)),
)
