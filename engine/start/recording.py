"""Records an engine's decode steps at the start, the same on every rank of a group."""

import torch
from msgspec import structs

from engine.backends.base import DecodeSteps, StepSizes
from engine.device import device_errors
from engine.kv.pool import KVPool
from engine.start.loaded_model import LoadedModel
from engine.start.sizing import step_tokens
from infra.config.engine import EngineConfig
from infra.config.speculation import MAX_DRAFT_TOKENS, proposing
from infra.process.status import Progress

MAX_RECORDED_DRAFT_TOKENS = 7
"""Maximum draft tokens of a sequence in recorded decode steps, unless --speculative-tokens sets their number or they
form a tree: these and the token before them are the queries of one attention tile."""


def record_decode_steps(
    config: EngineConfig, loaded: LoadedModel, pool: KVPool, longest: int, progress: Progress, tree: tuple[int, ...]
) -> DecodeSteps | None:
    """Records steps of texts of up to `longest` tokens; None if they are off, or a model's steps cannot be recorded.

    `tree`: parent of each draft token, if a proposer drafts a tree.
    """
    if config.decode_graphs != "on" or loaded.is_wrapped:
        return None
    max_tokens = step_tokens(config, loaded.backend.device)
    draft_tokens = config.speculative_tokens or MAX_DRAFT_TOKENS[proposing(config)]
    if not tree and not config.speculative_tokens:
        draft_tokens = min(draft_tokens, MAX_RECORDED_DRAFT_TOKENS)
    with torch.inference_mode(), device_errors():
        return loaded.backend.decode_steps(
            loaded.model,
            structs.replace(loaded.config, max_model_len=longest),
            pool.layers,
            StepSizes(min(config.max_sequences, max_tokens), draft_tokens, max_tokens, trees=bool(tree)),
            progress,
        )
