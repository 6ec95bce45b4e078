"""Loads the draft model of a target, checks that it matches, and makes its KV beside the target's pool."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from msgspec import structs

from checkpoints.model_location import locate
from contracts.errors import ConfigError
from contracts.kv.spec import KVSpec, blocks_for
from contracts.messages.sampling import Sampling
from engine.backends.base import DecodeSteps, StepSizes
from engine.device import device_errors
from engine.model.checkpoint.weights import Checkpoint
from engine.model.config import TextModel
from engine.plan import StepPlan, StepResult, Work
from engine.speculation.proposers.draft import (
    MAX_SEQUENCES_PER_STEP,
    RECORDED_TOKENS,
    DraftModel,
    DraftProposer,
    own_blocks,
)
from engine.start.block_counts import Counts
from engine.start.device_memory import device_memory
from engine.start.load_model import load_model
from engine.start.loaded_model import LoadedModel
from engine.start.proposers.vocabularies import refuse_other_vocabulary
from infra.config.engine import EngineConfig
from infra.config.speculation import MAX_DRAFT_TOKENS
from infra.process.status import Progress

DRAFT_OPTION = "--draft-model"


@dataclass(frozen=True)
class LoadedDraft:
    """A loaded draft model, before its KV is allocated."""

    loaded: LoadedModel
    main: int  # the target's KV group whose block tables it shares: the first without a window
    max_drafts: int  # maximum draft tokens of a step
    chunk: int  # maximum tokens computed in one step, besides draft tokens
    records: bool  # whether its steps are recorded, where the backend can
    sequences: int  # maximum sequences of a recorded step

    def weights_bytes(self) -> int:
        return self.loaded.model.weights_bytes()

    def _own(self) -> int:
        return own_blocks(self.max_drafts, self.loaded.spec.groups[0].block_tokens)

    def own_bytes(self) -> int:
        return self._own() * self.loaded.spec.block_bytes()

    def with_blocks_of(self, target: KVSpec) -> KVSpec:
        """Returns the target's spec for sizing, with the draft's KV included in the main group's blocks."""
        group = target.groups[self.main]
        more = -(-self.loaded.spec.block_bytes() // len(group.layers))
        larger = structs.replace(group, block_bytes=group.block_bytes + more)
        return structs.replace(target, groups=(*target.groups[: self.main], larger, *target.groups[self.main + 1 :]))

    def proposer(self, counts: Counts, target: TextModel, progress: Progress) -> DraftProposer:
        """Allocates the draft's KV for a target's pool of `counts` blocks, records its steps, makes the proposer."""
        draft = self._with_pool(counts, target)
        draft = replace(draft, steps=self._record(draft, progress))
        return DraftProposer(draft, target.vocab_size, self.max_drafts, self.chunk)

    def _with_pool(self, counts: Counts, target: TextModel) -> DraftModel:
        loaded, count = self.loaded, counts[self.main]
        engine = loaded.with_pool([count + self._own()] * len(loaded.spec.groups))
        config = structs.replace(loaded.config, max_model_len=min(loaded.config.max_model_len, target.max_model_len))
        return DraftModel(engine.backend, engine.model, config, engine.pool, engine.attention, self.main, count)

    def _record(self, draft: DraftModel, progress: Progress) -> DecodeSteps | None:
        if not self.records:
            return None
        with torch.inference_mode(), device_errors():
            return draft.backend.decode_steps(
                draft.model,
                draft.config,
                draft.pool.layers,
                StepSizes(
                    self.sequences, RECORDED_TOKENS - 1, self.chunk, self.max_drafts * draft.backend.launch_depth
                ),
                lambda stage, percent: progress(f"{stage} of the draft model", percent),
            )

    def warm_up(self, progress: Progress) -> int:
        """Runs its steps on a GPU before the pool is sized: their kernels are compiled, their memory is allocated.

        Returns the bytes that recorded steps will keep.
        """
        config, size = self.loaded.config, self.loaded.spec.groups[0].block_tokens
        device = self.loaded.backend.device
        if device.type != "cuda":
            return 0
        blocks = blocks_for(self.chunk, size)
        draft = self._with_pool((1 + blocks,) * (self.main + 1), config)
        proposer = DraftProposer(draft, config.vocab_size, self.max_drafts, self.chunk)
        tables = (list(range(1, 1 + blocks)),) * (self.main + 1)
        tokens = [0] * (min(self.chunk, config.max_model_len - self.max_drafts) - 1)
        work = Work(0, 0, [0], tables, Sampling(seed=0), tokens=tokens, propose=self.max_drafts)
        with torch.inference_mode(), device_errors():
            for step in range(2):  # first a text, then its continuation
                proposer.propose(StepPlan(step, [work]), StepResult(step, [[0]]), torch.empty(0))
                tokens.append(0)
        free = device_memory(device).free
        steps = self._record(draft, progress)
        return max(0, free - device_memory(device).free) if steps is not None else 0


def load_draft(
    config: EngineConfig, target: LoadedModel, progress: Progress, open_weights: Callable[[Path], Checkpoint]
) -> LoadedDraft:
    """Loads `config.draft_model` like the target: same device, number formats and backend.

    Raises `ConfigError` or `ModelError` for a model that cannot draft for this target.
    """
    draft_model, groups = config.draft_model, target.spec.groups
    main = next((number for number, group in enumerate(groups) if not group.window), None)
    if main is None:
        why = f"all layers of {target.config.name} see {groups[0].window} tokens, and a draft goes by blocks that stay"
        raise ConfigError(DRAFT_OPTION, draft_model, why)
    directory = locate(draft_model, progress)
    refuse_other_vocabulary(DRAFT_OPTION, draft_model, directory, locate(config.model, weights=False))
    own = structs.replace(
        config,
        model=draft_model,
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
    return LoadedDraft(
        loaded,
        main,
        max_drafts=config.speculative_tokens or MAX_DRAFT_TOKENS["draft"],
        chunk=config.max_batch_tokens,
        records=config.decode_graphs == "on",
        sequences=min(MAX_SEQUENCES_PER_STEP, config.max_sequences, config.max_batch_tokens),
    )
