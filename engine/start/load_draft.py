"""Loads the draft model of a target, checks that it matches, and makes its KV beside the target's pool."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec import structs

from checkpoints.model_location import locate
from contracts.errors import ConfigError
from contracts.kv.spec import KVSpec, blocks_for
from contracts.messages.sampling import Sampling
from engine.device import device_errors
from engine.model.config import TextModel
from engine.model.weights import Checkpoint
from engine.plan import StepPlan, StepResult, Work
from engine.speculation.proposers.draft import DraftModel, DraftProposer, own_blocks
from engine.start.block_counts import Counts
from engine.start.load_model import load_model
from engine.start.loaded_model import LoadedModel
from engine.start.vocabularies import refuse_other_vocabulary
from infra.config.engine import EngineConfig
from infra.process.status import Progress

DRAFT_OPTION = "--draft-model"
DEFAULT_DRAFT_TOKENS = 8
"""Default draft tokens of a sequence and step; further draft tokens are seldom accepted."""


@dataclass(frozen=True)
class LoadedDraft:
    """A loaded draft model, before its KV is allocated."""

    loaded: LoadedModel
    main: int  # the target's KV group whose block tables it shares: the first without a window
    most: int  # maximum draft tokens of a step
    chunk: int  # maximum tokens computed in one step, besides draft tokens

    def weights_bytes(self) -> int:
        return self.loaded.model.weights_bytes()

    def _own(self) -> int:
        return own_blocks(self.most, self.loaded.spec.groups[0].block_tokens)

    def own_bytes(self) -> int:
        return self._own() * self.loaded.spec.block_bytes()

    def with_blocks_of(self, target: KVSpec) -> KVSpec:
        """Returns the target's spec for sizing, with the draft's KV included in the main group's blocks."""
        group = target.groups[self.main]
        more = -(-self.loaded.spec.block_bytes() // len(group.layers))
        larger = structs.replace(group, block_bytes=group.block_bytes + more)
        return structs.replace(target, groups=(*target.groups[: self.main], larger, *target.groups[self.main + 1 :]))

    def proposer(self, counts: Counts, target: TextModel) -> DraftProposer:
        """Allocates the draft's KV for a target's pool of `counts` blocks, and makes the proposer."""
        loaded, count = self.loaded, counts[self.main]
        engine = loaded.with_pool([count + self._own()] * len(loaded.spec.groups))
        config = structs.replace(loaded.config, max_model_len=min(loaded.config.max_model_len, target.max_model_len))
        draft = DraftModel(engine.backend, engine.model, config, engine.pool, engine.attention, self.main, count)
        return DraftProposer(draft, target.vocab_size, self.most, self.chunk)

    def warm_up(self) -> None:
        """Compiles the kernels of its steps on a GPU, and allocates their memory before the pool is sized."""
        backend, config, size = self.loaded.backend, self.loaded.config, self.loaded.spec.groups[0].block_tokens
        if backend.device.type != "cuda":
            return
        blocks = blocks_for(self.chunk, size)
        proposer = self.proposer((1 + blocks,) * (self.main + 1), config)
        tables = (list(range(1, 1 + blocks)),) * (self.main + 1)
        tokens = [0] * (min(self.chunk, config.max_model_len - self.most) - 1)
        work = Work(0, 0, [0], tables, Sampling(seed=0), tokens=tokens, propose=self.most)
        with torch.inference_mode(), device_errors():
            for step in range(2):  # first a text, then its continuation
                proposer.propose(StepPlan(step, [work]), StepResult(step, [[0]]), torch.empty(0))
                tokens.append(0)


def load_draft(
    config: EngineConfig, target: LoadedModel, progress: Progress, open_weights: Callable[[Path], Checkpoint]
) -> LoadedDraft:
    """Loads `config.draft_model` like the target: same device, number formats and backend.

    Raises `ConfigError` or `ModelError` for a model that cannot draft for this target.
    """
    given, groups = config.draft_model, target.spec.groups
    main = next((number for number, group in enumerate(groups) if not group.window), None)
    if main is None:
        why = f"all layers of {target.config.name} see {groups[0].window} tokens, and a draft goes by blocks that stay"
        raise ConfigError(DRAFT_OPTION, given, why)
    directory = locate(given, progress)
    refuse_other_vocabulary(DRAFT_OPTION, given, directory, locate(config.model, weights=False))
    own = structs.replace(
        config,
        model=given,
        model_impl="native",
        max_model_len=0,
        lora=(),
        lora_root="",
        allow_lora_loading=False,
        speculation="none",
        draft_model="",
        speculative_tokens=0,
    )
    loaded = load_model(own, progress, open_weights)
    return LoadedDraft(loaded, main, config.speculative_tokens or DEFAULT_DRAFT_TOKENS, config.max_batch_tokens)
