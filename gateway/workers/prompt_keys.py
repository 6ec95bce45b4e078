"""Names a prompt's full blocks as workers do, by short keys: whose KV of them lies where is told by these. Pure."""

from collections.abc import Collection, Mapping

from contracts.kv.block_hash import SHORT_KEY_BYTES, BlockKeys
from contracts.messages.job import Prompt

PromptKeys = Mapping[int, tuple[int, ...]]
"""Holds short keys of a prompt's full blocks, in order, by the number of tokens of a block."""

MAX_BLOCK_SIZES = 4
"""Block sizes for which keys are computed at most; the others' workers are as if they told nothing."""


def prompt_keys(prompt: Prompt, sizes: Collection[int]) -> PromptKeys:
    """Returns a prompt's keys for each of these block sizes.

    A block of 16 tokens takes 1.5 µs, so that long prompts are for a thread.
    """
    tokens = prompt.token_ids
    found = {}
    for size in sorted(sizes)[:MAX_BLOCK_SIZES]:
        keys = BlockKeys(prompt.salt, size, prompt.adapter)
        keys.cover(tokens, len(tokens))
        found[size] = tuple([int.from_bytes(key[:SHORT_KEY_BYTES], "little") for key in keys.keys])
    return found
