"""A loaded model, from which engines are made."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from contracts.kv.spec import KVSpec
from engine.adapters.slots import AdapterSlots
from engine.backends.base import Backend
from engine.engine import Engine
from engine.kv.host.host_tier import HostTier
from engine.kv.pool import KVPool, bytes_of_groups
from engine.kv.rank_pools import RankPools
from engine.model.config import TextModel
from engine.model.model import Model
from engine.model.quantized import Form
from engine.parallel.peers import NO_PEERS, Peers
from engine.parallel.rank_group import ONE_RANK, RankGroup
from engine.pooling import Pooler
from engine.speculation.proposers.eagle import EagleProposer
from engine.speculation.proposers.eagle_head import EagleHead


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model without a KV pool."""

    backend: Backend[Any, Any]
    model: Model[Any]
    config: TextModel
    spec: KVSpec
    parameters: int  # values in the model's weights
    adapters: AdapterSlots | None = None  # None: adapters are off
    forms: tuple[Form, ...] = ()  # quantization formats of the weights, largest share first
    is_wrapped: bool = False  # transformers' own code computes it, whose steps cannot be recorded
    head: EagleHead[Any] | None = None  # its layer is the last of the config
    max_sequences: int = 0  # of a step; only for a head
    whole_spec: KVSpec | None = None  # of the KV of all ranks together; None: of one rank
    group: RankGroup = ONE_RANK
    peers: Peers = NO_PEERS
    pooler: Pooler | None = None  # of a model that gives vectors or scores

    def with_pool(
        self,
        counts: Sequence[int],
        tier: HostTier | None = None,
        *,
        is_shared: bool = False,
        descriptors: Sequence[int] = (),
    ) -> Engine:
        """Returns an engine over a new pool with `counts` blocks by KV group; `tier` extends the first group.

        With `is_shared`, other processes of this host may write into the pool, if it is a CPU's. `descriptors` are of
        memory that rank 0 has made for it.
        """
        backend = self.backend
        make = partial(KVPool, self.spec, counts, backend.device, backend.mover, backend.codec)
        pool = make(tier, is_shared=is_shared, descriptors=descriptors)
        slots = tier.slots if tier is not None else 0
        if backend.device.type == "cuda":
            others = [make(handles=each, own=pool) for each in self.peers.make_device_pool(counts, slots)]
        else:
            shared = self.peers.make_pool(counts, bytes_of_groups(self.spec, counts), slots)
            others = [make(descriptors=each) for each in shared]
        attention = backend.attention(self.config, pool.layers)
        depth, adapters = backend.launch_depth, self.adapters
        eagle = None
        if self.head is not None:
            eagle = EagleProposer(self.head, backend, pool, attention, self.max_sequences)
        return Engine(
            *(backend, self.model, self.config, pool, attention, depth, None, adapters),
            follower=eagle,
            group=self.group,
            peers=self.peers,
            pooler=self.pooler,
            rank_pools=RankPools([pool, *others], self.whole_spec) if others and self.whole_spec else None,
        )
