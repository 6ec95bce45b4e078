"""Of which tokens a draft's KV is there: by the marks that it leaves in blocks, whatever becomes of their numbers."""

from engine.speculation.proposers.draft_kv import DraftKV

TEXT = list(range(100, 120))


def test_what_was_written_is_held_but_for_the_last_token() -> None:
    draft_kv, tokens = DraftKV(4), TEXT[:10]
    assert draft_kv.stored_tokens(1, tokens, [7], [5, 6, 7]) == 0
    draft_kv.wrote(1, [5, 6, 7], 0, 11, [])
    assert draft_kv.stored_tokens(1, tokens, [7], [5, 6, 7]) == 10
    tokens.append(7)
    assert draft_kv.stored_tokens(1, tokens, [8, 9], [5, 6, 7, 8]) == 11


def test_guesses_count_as_far_as_they_came() -> None:
    draft_kv, tokens = DraftKV(4), TEXT[:10]
    draft_kv.stored_tokens(1, tokens, [7], [5, 6, 7, 8])
    draft_kv.wrote(1, [5, 6, 7, 8], 0, 11, [1, 2, 3])
    tokens.append(7)
    assert draft_kv.stored_tokens(1, tokens, [1, 2, 9], [5, 6, 7, 8]) == 13
    assert draft_kv.stored_tokens(1, tokens, [1, 2, 3], [5, 6, 7, 8]) == 13, (
        "the last token is computed again: it is what guesses need"
    )
    assert draft_kv.stored_tokens(1, tokens, [4], [5, 6, 7, 8]) == 11


def test_another_sequence_with_the_same_text_finds_its_whole_blocks() -> None:
    draft_kv, tokens = DraftKV(4), TEXT[:10]
    draft_kv.stored_tokens(1, tokens, [7], [5, 6, 7])
    draft_kv.wrote(1, [5, 6, 7], 0, 11, [])
    assert draft_kv.stored_tokens(2, TEXT[:10], [7], [5, 6, 9]) == 0, "whose blocks are told when their text is whole"
    draft_kv.stored_tokens(1, tokens, [7], [5, 6, 7])
    assert draft_kv.stored_tokens(2, TEXT[:10], [7], [5, 6, 9]) == 8
    assert draft_kv.stored_tokens(3, [*TEXT[:4], 1, *TEXT[5:10]], [7], [5, 6, 9]) == 4
    assert draft_kv.stored_tokens(4, TEXT[:10], [7], [6, 5, 9]) == 0, "at another place it is another text's KV"


def test_a_block_that_others_wrote_into_is_lost_with_all_behind_it() -> None:
    draft_kv, tokens = DraftKV(4), TEXT[:12]
    draft_kv.stored_tokens(1, tokens, [7], [5, 6, 7, 8])
    draft_kv.wrote(1, [5, 6, 7, 8], 0, 13, [])
    assert draft_kv.stored_tokens(1, tokens, [7], [5, 6, 7, 8]) == 12
    draft_kv.stored_tokens(2, [1, 2, 3], [4], [6])
    draft_kv.wrote(2, [6], 0, 4, [])
    assert draft_kv.stored_tokens(1, tokens, [7], [5, 6, 7, 8]) == 4
    assert draft_kv.stored_tokens(1, tokens, [7], [5, 9, 7, 8]) == 4, "a copy has another number"


def test_a_copied_part_is_computed_again() -> None:
    """A branch's last block is a copy: the draft's KV of it stays behind."""
    draft_kv, tokens = DraftKV(4), TEXT[:10]
    draft_kv.stored_tokens(1, tokens, [7], [5, 6, 7])
    draft_kv.wrote(1, [5, 6, 7], 0, 11, [])
    assert draft_kv.stored_tokens(1, tokens, [7], [5, 6, 8]) == 8


def test_another_text_under_the_same_number_finds_nothing() -> None:
    draft_kv = DraftKV(4)
    draft_kv.stored_tokens(1, TEXT[:10], [7], [5, 6, 7])
    draft_kv.wrote(1, [5, 6, 7], 0, 11, [])
    assert draft_kv.stored_tokens(1, [1, 2, 3, 4, 5], [7], [5, 6]) == 0


def test_what_lies_behind_the_table_is_not_held() -> None:
    draft_kv, tokens = DraftKV(4), TEXT[:7]
    draft_kv.stored_tokens(1, tokens, [7, 8], [5, 6])
    draft_kv.wrote(1, [5, 6], 0, 8, [])
    assert draft_kv.stored_tokens(1, tokens, [7, 8], [5, 6]) == 8
    tokens += [7, 8]
    assert draft_kv.stored_tokens(1, tokens, [9], [5, 6, 7]) == 8
