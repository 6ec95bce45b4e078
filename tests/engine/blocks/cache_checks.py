"""What the prefix cache knows of a model of the block manager: nothing that is not there, and all that is."""

from contracts.kv.block_hash import BlockKeys
from contracts.kv.spec import KVGroup
from engine.blocks.finding import FoundPrefix
from engine.blocks.manager import BlockManager
from tests.engine.blocks.held_sequence import HeldSequence
from tests.engine.blocks.stored_kv import StoredKV
from tests.engine.blocks.text_numbers import TextNumbers


def check_cache(manager: BlockManager, kv: StoredKV, texts: TextNumbers) -> None:
    """Every text that the cache knows is where it says."""
    for group, pool in enumerate(manager.groups):
        for node in pool.cache:
            stored = kv.of_node(group, node)
            tokens, root = texts.tokens_of(stored[-1])
            keys = BlockKeys(texts.salt(root), pool.block_tokens)
            keys.cover(tokens, len(tokens))
            assert keys.keys[-1:] == [node.key] and keys.packed[-1] == node.tokens, "the cache knows another text"
            numbers = texts.of(root, tokens)
            assert numbers[-pool.block_tokens :] == stored, "the cache knows what is not there"


def check_found(
    manager: BlockManager, kv: StoredKV, held: HeldSequence, found: FoundPrefix, limit: int, *, returns_all: bool
) -> None:
    """Nothing more of the text is in the cache; called while no step is being planned.

    `returns_all`: blocks come back from the host tier however few they are.
    """
    here = [
        {number for node in pool.cache for number in kv.of_node(at, node)} for at, pool in enumerate(manager.groups)
    ]
    groups = list(zip(kv.groups, here, strict=True))
    if held.landing:
        for (group, known), whole in zip(groups, found.held, strict=True):
            ends = range(group.first_needed(limit), limit // group.block_tokens)
            run = next((at for at in ends if held.texts[(at + 1) * group.block_tokens - 1] not in known), ends.stop)
            assert whole <= run and (not returns_all or whole == run), "the cache knows more of this text, or less"
        return
    most = max(at for at in range(limit + 1) if all(_sees(group, held.texts, at, known) for group, known in groups))
    assert found.tokens <= most and (not returns_all or found.tokens == most), "the cache knows more of this, or less"


def _sees(group: KVGroup, texts: list[int], tokens: int, known: set[int]) -> bool:
    """Whether a query behind so many tokens of a text finds all that it sees, in whole blocks but for the last."""
    size = group.block_tokens
    whole = [texts[(at + 1) * size - 1] for at in range(group.first_needed(tokens), tokens // size)]
    return known.issuperset(whole) and (tokens % size == 0 or texts[tokens - 1] in known)
