"""A loaded model, its KV pool and its backend: the state that steps share."""

from dataclasses import dataclass, field
from typing import Any

from engine.adapters.slots import AdapterSlots
from engine.backends.base import Backend, DecodeSteps
from engine.kv.pool import KVPool
from engine.kv.rank_pools import RankPools
from engine.model.attention import Attention
from engine.model.config import TextModel
from engine.model.model import Model
from engine.parallel.peers import NO_PEERS, Peers
from engine.parallel.rank_group import ONE_RANK, RankGroup
from engine.pooling import Pooler
from engine.speculation.proposers.model_proposer import KVProposer


@dataclass(frozen=True)
class Engine:
    """A loaded model, its KV pool, and the backend that computes on both."""

    backend: Backend[Any, Any]
    model: Model[Any]
    model_config: TextModel
    pool: KVPool
    attention: Attention[Any]  # over the pool
    launch_depth: int  # steps that may be launched and not yet collected
    decode_steps: DecodeSteps | None  # runs steps of decodes only; None: such steps are not recorded
    adapters: AdapterSlots | None  # None: adapters are off
    group: RankGroup = field(default=ONE_RANK, kw_only=True)
    peers: Peers = field(default=NO_PEERS, kw_only=True)  # of rank 0
    rank_pools: RankPools | None = field(default=None, kw_only=True)  # all ranks' pools as one; None: of one rank
    pooler: Pooler | None = field(default=None, kw_only=True)  # None: tokens are drawn
    follower: KVProposer | None = field(default=None, kw_only=True)  # proposer whose KV is behind the model's
