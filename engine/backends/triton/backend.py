"""Makes a backend of the Triton kernels: on CUDA, and in Triton's interpreter on a CPU, where they are checked.

Importing this module loads Triton, which only hosts with a GPU install.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from contracts.kinds import Activations
from contracts.kv.spec import blocks_for
from engine.backends.base import Backend, OnLayer, StepSizes
from engine.backends.triton.attention.attention_step import TritonAttentionStep
from engine.backends.triton.attention.paged_attention import TritonAttention
from engine.backends.triton.codec import TritonCodec
from engine.backends.triton.elementwise import TritonElementwise
from engine.backends.triton.graphs.decode_graphs import DecodeGraphs, most_with
from engine.backends.triton.graphs.decode_inputs import DecodeInputs
from engine.backends.triton.graphs.mixed_graphs import MIXED_ROWS, MixedGraphs
from engine.backends.triton.graphs.mixed_inputs import MixedInputs
from engine.backends.triton.linear_layers.linear import TritonLinears
from engine.backends.triton.linear_layers.routers import split_routers
from engine.backends.triton.mover import TritonMover
from engine.backends.triton.sampling.adjuster import TritonAdjuster
from engine.backends.triton.sampling.sampler import TritonSampler
from engine.backends.triton.sampling.scorer import TritonScorer
from engine.model.config import AttentionLayer, ExpertsMLP, LatentAttention, LayerConfig, ModelConfig, TextModel
from engine.model.layers.experts import ExpertsWeights
from engine.model.layers.layer import LayerWeights
from engine.model.layers.linear import Linear
from engine.model.model import Model
from engine.model.rope import angle_table
from engine.model.transformer import OperatorLayers
from infra.process.status import Progress
from kernels import rms_norm, rope_and_store, store_latents
from kernels.attention import attention_tiles, latent_tiles
from kernels.moe import route
from kernels.sampling import sample

SMALL_TREE_TOKENS = 8
"""Tokens of a sequence, the last of its text included, in recordings of small trees: the queries of one tile."""


class TritonBackend(Backend[Linear, TritonAttentionStep]):
    """Records steps of decodes, and small mixed steps. Matrix products are PyTorch's: cuBLAS computes them."""

    name = "triton"

    def __init__(self, device: torch.device, dtype: torch.dtype, activations: Activations = "auto") -> None:
        super().__init__(device, dtype)
        self.linears: TritonLinears = TritonLinears(device, dtype, activations)
        self.adjuster = TritonAdjuster()
        self.sampler = TritonSampler()
        self.scorer = TritonScorer()
        self.mover = TritonMover()
        self.codec = TritonCodec()

    def layers(
        self, config: ModelConfig, layers: Sequence[LayerWeights[Linear]], norm: Tensor | None, first: int = 0
    ) -> OperatorLayers[TritonAttentionStep]:
        tables = {rope: angle_table(rope, config.max_model_len, self.device) for rope in config.ropes}
        routers = (layer.mlp.router for layer in layers if isinstance(layer.mlp, ExpertsWeights))
        between = TritonElementwise(tables, config.norm_eps, split_routers(routers, self.dtype))
        return OperatorLayers(config, layers, norm, between, first)

    def attention(self, config: TextModel, pool: list[Tensor]) -> TritonAttention:
        return TritonAttention(pool, [layer.attention for layer in config.layers], self.dtype)

    def warm_up(self, config: TextModel, pool: list[Tensor]) -> None:
        self.attention(config, pool).warm_up()
        self.linears.warm_up()
        TritonScorer().warm_up(config.vocab_size, self.device, self.dtype)

    def decode_steps(
        self,
        model: Model[TritonAttentionStep],
        config: TextModel,
        pool: list[Tensor],
        sizes: StepSizes,
        progress: Progress,
    ) -> DecodeGraphs:
        most, drafts = sizes.sequences, sizes.draft_tokens
        attention, longest = self.attention(config, pool), config.max_model_len
        width = blocks_for(longest, attention.block)
        plan = partial(attention.plan, groups=attention.groups_that_cut(longest))
        shared = attention.block, self.device, sizes.in_flight or self.launch_depth, attention.groups, plan
        trees = sizes.trees and drafts < min(filter(None, attention.windows), default=longest)
        tokens = {1, min(SMALL_TREE_TOKENS, 1 + drafts), 1 + drafts} if trees else {1, 1 + drafts}
        inputs = {each: DecodeInputs(most_with(each, most), width, *shared, each) for each in tokens}
        mixed, adapts = None, self.linears.adapts
        mixed_rows = [rows for rows in MIXED_ROWS if rows <= sizes.mixed_tokens]
        if mixed_rows and not any(isinstance(layer.attention, LatentAttention) for layer in config.layers):
            mixed_inputs = MixedInputs(mixed_rows[-1], most, width, *shared, 1 + drafts)
            mixed = MixedGraphs(model, attention, mixed_inputs, mixed_rows, longest, adapts)
        return DecodeGraphs(model, attention, inputs, most, longest, progress, adapts, mixed, trees=trees)

    def layer_signal(self, written: OnLayer | None, divide: Callable[[], None]) -> OnLayer | None:
        """Returns `written`: the host's cores do not compute, and recorded steps signal no layers."""
        return written


def unsupported(config: TextModel, dtype: torch.dtype, block: int) -> str:
    """Returns one sentence that says why the kernels cannot run such a model; empty if supported."""
    layers = (_unsupported_layer(layer, dtype, block) for layer in dict.fromkeys(config.layers))
    return (
        next(filter(None, layers), "")
        or (isinstance(config, ModelConfig) and rms_norm.unsupported(config.hidden_size))
        or sample.unsupported(dtype, config.vocab_size)
    )


def _unsupported_layer(layer: AttentionLayer, dtype: torch.dtype, block: int) -> str:
    attention = layer.attention
    if isinstance(attention, LatentAttention):
        latent, rope = attention.latent_rank, attention.rope_dim
        why = latent_tiles.unsupported(dtype, latent, rope, block)
        why = why or store_latents.unsupported(latent, attention.query_rank)
    else:
        why = attention_tiles.unsupported(dtype, attention.head_dim, block, attention.heads // attention.kv_heads)
    if why or not isinstance(layer, LayerConfig):  # the rest of the layer is not ours
        return why
    if isinstance(layer.mlp, ExpertsMLP) and (why := route.unsupported(layer.mlp.experts)):
        return why
    if isinstance(attention, LatentAttention):
        return ""
    all_heads = attention.heads + 2 * attention.kv_heads if attention.norm == "all" else 0
    return rope_and_store.unsupported(attention.head_dim, all_heads)
