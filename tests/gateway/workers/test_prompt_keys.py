"""A prompt's blocks have the keys that workers tell of, for each block size, and of nobody else's texts."""

import pytest

from contracts.messages.job import Prompt
from engine.blocks.key_changes import KeyChanges
from engine.blocks.manager import BlockManager
from gateway.workers.kept_blocks import EXPECTED_BLOCKS_S, KeptBlocks
from gateway.workers.prompt_keys import MAX_BLOCK_SIZES, prompt_keys
from tests.engine.blocks.test_manager import kept_texts, spec
from worker.gateways.key_log import KeyLog

TEXT = list(range(100, 111))


def test_a_gateway_finds_what_a_worker_keeps_and_no_other_tenant_s() -> None:
    changes = KeyChanges()
    blocks = BlockManager(spec(4), [20], changes=changes)
    kept_texts(blocks, TEXT, salt="tenant")
    changed, log, kept = blocks.take_key_changes(), KeyLog(), KeptBlocks()
    assert changed is not None
    log.change(*changed)
    log.heard("gateway", kept.heard, 0.0)
    news = log.owed("gateway")
    assert news is not None
    kept.take(news)
    longer = [*TEXT[:8], 1, 2, 3, 4]
    for prompt, found in (
        (Prompt(TEXT, 11, "tenant"), 2),
        (Prompt(longer, 12, "tenant"), 2),
        (Prompt(TEXT[:7], 7, "tenant"), 1),
        (Prompt(TEXT, 11), 0),
        (Prompt(TEXT, 11, "tenant", adapter="a"), 0),
    ):
        assert kept.blocks(prompt_keys(prompt, [4]).short[4]) == found


def test_keys_are_computed_for_a_few_sizes_only() -> None:
    keys = prompt_keys(Prompt(TEXT, 11), range(2, 20))
    assert {size: len(found) for size, found in keys.short.items()} == {2: 5, 3: 3, 4: 2, 5: 2} and MAX_BLOCK_SIZES == 4


@pytest.mark.parametrize("prompt_tokens", [0, 3, 4, 6, 11])
def test_an_answer_s_keys_go_on_behind_the_prompt_s(prompt_tokens: int) -> None:
    keys = prompt_keys(Prompt(TEXT[:prompt_tokens], prompt_tokens, "tenant"), [4])
    behind = TEXT[prompt_tokens - prompt_tokens % 4 :]
    assert keys.with_answer(4, behind) == prompt_keys(Prompt(TEXT, 11, "tenant"), [4]).short[4]


def test_what_is_expected_counts_for_a_moment() -> None:
    kept = KeptBlocks()
    kept.expects([1, 2], 10.0)
    assert kept.blocks([1, 2, 3]) == 2
    kept.expects([3], 10.1 + EXPECTED_BLOCKS_S)
    assert kept.blocks([1, 2, 3]) == 3
    kept.expects([4], 10.2 + 2 * EXPECTED_BLOCKS_S)
    assert 1 not in kept and 3 in kept and 4 in kept
