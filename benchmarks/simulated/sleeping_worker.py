"""A real worker whose model sleeps for a step's seconds and computes nothing: what a simulation is compared with.

`python -m benchmarks.simulated.sleeping_worker MODULE COSTS …` stands in place of `python -m MODULE …`, where MODULE is
`prefill_service` or `decode_service` and COSTS are step costs as JSON. KV of arbitrary content moves as in any worker.
A layer's KV is stored when its share of the step's seconds is over. More workers than cores run undisturbed, since they
sleep.
"""

import sys
import time
from dataclasses import replace
from typing import Any

import msgspec
import torch
from msgspec import structs
from torch import Tensor

import decode_service.__main__ as decode
import prefill_service.__main__ as prefill
from engine.model.batch import Batch
from engine.model.config import ModelConfig
from engine.model.model import Model, Stored
from engine.start.load import LoadedEngine, load_engine
from infra.cli import parse_or_exit
from infra.config.worker import WorkerConfig
from pricing.rates import StartRates
from pricing.routes.pooled import COEFFICIENT_NAMES
from pricing.step_costs.steps import StepCosts, StepWork, pairs_of
from worker.start import serve


def work_of(batch: Batch) -> StepWork:
    """Returns the work of a step; a sequence with one row decodes."""
    rows = list(zip(batch.query_lengths.tolist(), batch.kv_lengths.tolist(), strict=True))
    prompts = [(length - count, count) for count, length in rows if count > 1]
    decodes = [length for count, length in rows if count == 1]
    return StepWork(
        sum(count for _, count in prompts), sum(pairs_of(*each) for each in prompts), len(decodes), sum(decodes)
    )


class SleepingModel:
    """Sleeps in place of a model's layers; its head is the model's own."""

    def __init__(self, model: Model[Any], costs: StepCosts, layers: int, width: int, dtype: torch.dtype) -> None:
        self._model = model
        self._costs = costs
        self._layers = layers
        self._width = width
        self._dtype = dtype

    def weights_bytes(self) -> int:
        return self._model.weights_bytes()

    def forward(self, batch: Batch, step: Any, stored: Stored) -> Tensor:
        began, seconds = time.monotonic(), self._costs.seconds(work_of(batch))
        for layer in range(self._layers):
            due = began + seconds * (layer + 1) / self._layers
            time.sleep(max(0.0, due - time.monotonic()))
            stored(layer)
        return torch.zeros((len(batch.logit_rows), self._width), dtype=self._dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


def main() -> int:
    module, costs = sys.argv[1], msgspec.json.decode(sys.argv[2], type=StepCosts)
    del sys.argv[1:3]

    def load(*words: Any, **settings: Any) -> LoadedEngine:
        engine = load_engine(*words, **settings)
        seed = structs.replace(engine.costs, **{name: getattr(costs, name) for name in COEFFICIENT_NAMES})
        rates = StartRates(1 / costs.prompt_token, engine.rates.host_bytes_per_second)
        config = engine.model_config
        assert isinstance(config, ModelConfig), "the model is one of ours"
        model = SleepingModel(engine.model, costs, len(config.layers), config.hidden_size, engine.backend.dtype)
        return replace(engine, model=model, costs=seed, rates=rates)

    if module == "prefill_service":
        return serve("prefill", parse_or_exit(WorkerConfig, module), prefill.role, load)
    return serve("decode", parse_or_exit(WorkerConfig, module), decode.role, load)


if __name__ == "__main__":
    sys.exit(main())
