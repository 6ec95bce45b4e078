"""Loads the proposer of draft tokens that a model computes: a draft model, or Medusa heads.

An EAGLE head is loaded with its target (`load_model.py`), whose KV groups it extends; it comes back here as the
engine's follower.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contracts.kv.spec import KVSpec
from engine.engine import Engine
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import TextModel
from engine.speculation.proposers.medusa import MedusaProposer
from engine.speculation.proposers.model_proposer import ModelProposer
from engine.start.block_counts import Counts
from engine.start.loaded_model import LoadedModel
from engine.start.proposers.load_draft import LoadedDraft, load_draft
from engine.start.proposers.load_medusa import load_medusa
from infra.config.engine import EngineConfig
from infra.config.speculation import proposing
from infra.process.status import Progress


@dataclass(frozen=True)
class LoadedProposer:
    """A draft model without KV yet, Medusa heads, or neither."""

    draft: LoadedDraft | None = None
    medusa: MedusaProposer | None = None

    @property
    def weights_bytes(self) -> int:
        return sum(each.weights_bytes() for each in (self.draft, self.medusa) if each is not None)

    @property
    def own_kv_bytes(self) -> int:
        """Returns the bytes of the draft's KV blocks that do not follow the target's block tables."""
        return self.draft.own_bytes() if self.draft is not None else 0

    @property
    def tree(self) -> tuple[int, ...]:
        """Returns the parent of each draft token in the tree; empty for a chain."""
        return self.medusa.tree.parents if self.medusa is not None else ()

    def with_kv_of_draft(self, target: KVSpec) -> KVSpec:
        """Returns the spec by which the target's pool is sized: its blocks carry the draft's KV, too."""
        return target if self.draft is None else self.draft.with_blocks_of(target)

    def warm_up(self, progress: Progress) -> int:
        """Runs the draft's steps before the pool is sized; returns the bytes that its recorded steps will keep."""
        return self.draft.warm_up(progress) if self.draft is not None else 0

    def begin(self, engine: Engine, counts: Counts, target: TextModel, progress: Progress) -> ModelProposer | None:
        if self.draft is not None:
            return self.draft.proposer(counts, target, progress)
        return self.medusa or engine.follower


def load_proposer(
    config: EngineConfig, target: LoadedModel, progress: Progress, open_weights: Callable[[Path], Checkpoint]
) -> LoadedProposer:
    """Loads this rank's part of the proposer; a draft model is whole on rank 0, and other ranks load none.

    Raises `ModelError` or `ConfigError` for a proposer that does not fit the target.
    """
    match proposing(config):
        case "draft" if target.group.shard.rank == 0:
            return LoadedProposer(draft=load_draft(config, target, progress, open_weights))
        case "medusa":
            return LoadedProposer(medusa=load_medusa(config.medusa, target, progress))
    return LoadedProposer()
