"""Holds a model that is loaded, and makes engines of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.kv.spec import KVSpec
from engine.adapters.slots import AdapterSlots
from engine.backends.base import Backend
from engine.executor import Engine
from engine.kv.host_tier import HostTier
from engine.kv.pool import KVPool
from engine.model.config import TextModel
from engine.model.model import Model
from engine.model.quantized import Form
from engine.speculation.proposers.eagle import EagleProposer
from engine.speculation.proposers.eagle_head import EagleHead


@dataclass(frozen=True)
class LoadedModel:
    """Holds a model that is loaded, and has no KV pool yet."""

    backend: Backend[Any, Any]
    model: Model[Any]
    config: TextModel
    spec: KVSpec
    parameters: int  # values in the model's weights
    adapters: AdapterSlots | None = None  # None: there are none, and none can come
    forms: tuple[Form, ...] = ()  # that weights are quantized in, the largest part first
    is_ours: bool = True  # else transformers' own code computes it, and no steps of it are recorded
    head: EagleHead[Any] | None = None  # guesses hidden states; its layer is the last of the config
    most_sequences: int = 0  # of a step, where there is a head

    def with_pool(self, counts: Sequence[int], tier: HostTier | None = None) -> Engine:
        """Makes an engine over a new pool with `counts` blocks of each KV group, the first group's with a `tier`."""
        backend = self.backend
        pool = KVPool(self.spec, counts, backend.device, backend.mover, backend.codec, tier)
        attention = backend.attention(self.config, pool.layers)
        depth, adapters = backend.launch_depth, self.adapters
        eagle = None
        if self.head is not None:
            eagle = EagleProposer(self.head, backend, pool, attention, self.most_sequences)
        return Engine(backend, self.model, self.config, pool, attention, depth, None, adapters, follower=eagle)
