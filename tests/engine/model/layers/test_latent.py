"""Latent attention's two forms against transformers' own, over KV that is one plain tensor."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.backends.reference.elementwise import ReferenceElementwise
from engine.backends.reference.linear import ReferenceLinears
from engine.model.attention import AttentionStep
from engine.model.batch import build_batch
from engine.model.checkpoint.read_config import read_config
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import LatentAttention, ModelConfig
from engine.model.families.registry import names_of
from engine.model.layers.linear import LatentProducts
from engine.model.layers.linear_factory import LinearFactory
from engine.model.transformer import OperatorLayers, Transformer
from engine.plan import StepPlan, Work
from tests.reference import build_model, load_reference, make_prompts
from tests.variants import VARIANTS

CPU = torch.device("cpu")
TOKENS = 40


class OneText(AttentionStep):
    """Keeps one text's vectors as they come, and attends by the definition, in either form."""

    def __init__(self, config: ModelConfig, expanded: bool) -> None:
        self._config = config
        self._expanded = expanded
        self.vectors = [torch.empty(0)] * len(config.layers)

    def store(self, layer: int, keys_values: Tensor) -> None:
        self.vectors[layer] = torch.cat((self.vectors[layer], keys_values.squeeze(1)))

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        vectors = self.vectors[layer]
        found = torch.einsum("hqk,kl->qhl", self._weights(layer, queries, vectors.unsqueeze(0)), vectors)
        return found[..., : self._of(layer).latent_rank]

    def attend_latent(self, layer: int, queries: Tensor, products: LatentProducts) -> Tensor:
        if not self._expanded:
            return super().attend_latent(layer, queries, products)
        latents, shared = self.vectors[layer].split((self._of(layer).latent_rank, self._of(layer).rope_dim), 1)
        first, rest = (products.expanded(latents, heads) for heads in (slice(0, 2), slice(2, None)))
        own, values = (torch.cat(parts, 1) for parts in zip(first, rest, strict=True))
        keys = torch.cat((own, shared[:, None].expand(-1, own.shape[1], -1)), -1).transpose(0, 1)
        return torch.einsum("hqk,khv->qhv", self._weights(layer, queries, keys), values)

    def _weights(self, layer: int, queries: Tensor, keys: Tensor) -> Tensor:
        scores = queries.transpose(0, 1) @ keys.transpose(1, 2) * self._of(layer).scale
        count, length = scores.shape[1:]
        future = torch.ones(count, length, dtype=torch.bool).triu(length - count + 1)
        return scores.masked_fill(future, -torch.inf).softmax(-1)

    def _of(self, layer: int) -> LatentAttention:
        attention = self._config.layers[layer].attention
        assert isinstance(attention, LatentAttention)
        return attention


def load(directory: Path) -> tuple[ModelConfig, Transformer[Any]]:
    config = read_config(directory)

    def arrange(config: ModelConfig, layers: Any, norm: Tensor | None) -> OperatorLayers[Any]:
        return OperatorLayers(
            config, layers, norm, ReferenceElementwise(config.ropes, config.norm_eps, CPU, torch.float32)
        )

    checkpoint = Checkpoint(directory)
    make = LinearFactory(checkpoint, ReferenceLinears(CPU, torch.float32), CPU, torch.float32)
    model: Transformer[Any] = Transformer(config, names_of(config), make, arrange, lambda stage, percent: None)
    checkpoint.refuse_unused()
    return config, model


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("deepseek")])
@torch.inference_mode()
def test_both_forms_give_transformers_logits(variant: str, tmp_path: Path) -> None:
    """In chunks of which the last have one token; an error of 1e-4 is a thousandth of what the logits are."""
    directory = build_model(tmp_path / variant, VARIANTS[variant]())
    (text,) = make_prompts([TOKENS], 320)
    expected = load_reference(directory)(torch.tensor([text])).logits[0]
    config, model = load(directory)
    for expanded in (False, True):
        step, begin = OneText(config, expanded), 0
        for end in (1, 2, 20, 38, 39, TOKENS):
            plan = StepPlan(0, [Work(0, begin, text[begin:end], (list(range(1, 9)),), sampling=None)])
            batch = replace(build_batch(plan, 8, CPU, None), logit_rows=torch.arange(end - begin))
            found = model.logits(model.forward(batch, step, lambda layer: None))
            torch.testing.assert_close(found, expected[begin:end], rtol=0, atol=1e-4)
            begin = end
