"""Of which tokens a draft's KV is there: by the marks that it leaves in blocks, whatever becomes of their numbers."""

from engine.speculation.proposers.held import HeldKV

TEXT = list(range(100, 120))


def test_what_was_written_is_held_but_for_the_last_token() -> None:
    held, tokens = HeldKV(4), TEXT[:10]
    assert held.held(1, tokens, [7], [5, 6, 7]) == 0
    held.wrote(1, [5, 6, 7], 0, 11, [])
    assert held.held(1, tokens, [7], [5, 6, 7]) == 10
    tokens.append(7)
    assert held.held(1, tokens, [8, 9], [5, 6, 7, 8]) == 11


def test_guesses_count_as_far_as_they_came() -> None:
    held, tokens = HeldKV(4), TEXT[:10]
    held.held(1, tokens, [7], [5, 6, 7, 8])
    held.wrote(1, [5, 6, 7, 8], 0, 11, [1, 2, 3])
    tokens.append(7)
    assert held.held(1, tokens, [1, 2, 9], [5, 6, 7, 8]) == 13
    assert held.held(1, tokens, [1, 2, 3], [5, 6, 7, 8]) == 13, (
        "the last token is computed again: it is what guesses need"
    )
    assert held.held(1, tokens, [4], [5, 6, 7, 8]) == 11


def test_another_sequence_with_the_same_text_finds_its_whole_blocks() -> None:
    held, tokens = HeldKV(4), TEXT[:10]
    held.held(1, tokens, [7], [5, 6, 7])
    held.wrote(1, [5, 6, 7], 0, 11, [])
    assert held.held(2, TEXT[:10], [7], [5, 6, 9]) == 0, "whose blocks are told when their text is whole"
    held.held(1, tokens, [7], [5, 6, 7])
    assert held.held(2, TEXT[:10], [7], [5, 6, 9]) == 8
    assert held.held(3, [*TEXT[:4], 1, *TEXT[5:10]], [7], [5, 6, 9]) == 4
    assert held.held(4, TEXT[:10], [7], [6, 5, 9]) == 0, "at another place it is another text's KV"


def test_a_block_that_others_wrote_into_is_lost_with_all_behind_it() -> None:
    held, tokens = HeldKV(4), TEXT[:12]
    held.held(1, tokens, [7], [5, 6, 7, 8])
    held.wrote(1, [5, 6, 7, 8], 0, 13, [])
    assert held.held(1, tokens, [7], [5, 6, 7, 8]) == 12
    held.held(2, [1, 2, 3], [4], [6])
    held.wrote(2, [6], 0, 4, [])
    assert held.held(1, tokens, [7], [5, 6, 7, 8]) == 4
    assert held.held(1, tokens, [7], [5, 9, 7, 8]) == 4, "a copy has another number"


def test_a_copied_part_is_computed_again() -> None:
    """A branch's last block is a copy: the draft's KV of it stays behind."""
    held, tokens = HeldKV(4), TEXT[:10]
    held.held(1, tokens, [7], [5, 6, 7])
    held.wrote(1, [5, 6, 7], 0, 11, [])
    assert held.held(1, tokens, [7], [5, 6, 8]) == 8


def test_another_text_under_the_same_number_finds_nothing() -> None:
    held = HeldKV(4)
    held.held(1, TEXT[:10], [7], [5, 6, 7])
    held.wrote(1, [5, 6, 7], 0, 11, [])
    assert held.held(1, [1, 2, 3, 4, 5], [7], [5, 6]) == 0


def test_what_lies_behind_the_table_is_not_held() -> None:
    held, tokens = HeldKV(4), TEXT[:7]
    held.held(1, tokens, [7, 8], [5, 6])
    held.wrote(1, [5, 6], 0, 8, [])
    assert held.held(1, tokens, [7, 8], [5, 6]) == 8
    tokens += [7, 8]
    assert held.held(1, tokens, [9], [5, 6, 7]) == 8
