"""Short keys of a prompt's full blocks, by which workers report the KV that they have. Pure."""

from collections.abc import Collection, Mapping

from contracts.kv.block_hash import SHORT_KEY_BYTES, BlockKeys
from contracts.messages.job import Prompt

PromptKeys = Mapping[int, tuple[int, ...]]  # short keys of a prompt's full blocks, in order, by block size in tokens

MAX_BLOCK_SIZES = 4  # block sizes for which keys are computed; workers with further sizes count as if they had no KV


def prompt_keys(prompt: Prompt, sizes: Collection[int]) -> PromptKeys:
    """Returns a prompt's keys for each of these block sizes.

    A block of 16 tokens takes 1.5 µs: compute long prompts' keys in a thread.
    """
    tokens = prompt.token_ids
    found = {}
    for size in sorted(sizes)[:MAX_BLOCK_SIZES]:
        keys = BlockKeys(prompt.salt, size, prompt.adapter)
        keys.cover(tokens, len(tokens))
        found[size] = tuple([int.from_bytes(key[:SHORT_KEY_BYTES], "little") for key in keys.keys])
    return found
