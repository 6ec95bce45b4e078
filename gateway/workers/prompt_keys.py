"""Short keys of a prompt's full blocks, by which workers report the KV that they have. Pure."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from contracts.kv.block_hash import SHORT_KEY_BYTES, BlockKeys
from contracts.messages.job import Prompt

ShortKeys = Mapping[int, tuple[int, ...]]  # short keys of a prompt's full blocks, in order, by block size in tokens

MAX_BLOCK_SIZES = 4  # block sizes for which keys are computed; workers with further sizes count as if they had no KV


class PromptKeys(Struct, frozen=True):
    """Keys of a prompt's full blocks, for each block size in tokens."""

    short: ShortKeys = {}
    last: Mapping[int, bytes] = {}
    """The whole key of the last full block, which an answer's keys follow; the chain's root if no block is full."""

    def with_answer(self, block_tokens: int, behind: Sequence[int]) -> tuple[int, ...]:
        """Returns the short keys of a prompt and its answer; `behind`: the ids behind the prompt's full blocks."""
        keys = BlockKeys.behind(self.last[block_tokens], block_tokens)
        keys.cover(behind, len(behind))
        return self.short[block_tokens] + _shortened(keys)


NO_KEYS = PromptKeys()


def prompt_keys(prompt: Prompt, sizes: Collection[int]) -> PromptKeys:
    """Returns a prompt's keys for each of these block sizes.

    A block of 16 tokens takes 1.5 µs: compute long prompts' keys in a thread.
    """
    tokens = prompt.token_ids
    short, last = {}, {}
    for size in sorted(sizes)[:MAX_BLOCK_SIZES]:
        keys = BlockKeys(prompt.salt, size, prompt.adapter)
        keys.cover(tokens, len(tokens))
        short[size], last[size] = _shortened(keys), keys.keys[-1] if keys.keys else keys.root
    return PromptKeys(short, last)


def _shortened(keys: BlockKeys) -> tuple[int, ...]:
    return tuple([int.from_bytes(key[:SHORT_KEY_BYTES], "little") for key in keys.keys])
