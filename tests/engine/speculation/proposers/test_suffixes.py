"""The index of a text finds where its last tokens stood before, whatever the text, in bounded room."""

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.proposers.suffixes import (
    MAX_INDEXED_TOKENS,
    MAX_MATCH_TOKENS,
    MAX_TOKENS_PER_EXTENSION,
    MAX_UNINDEXED_TOKENS,
    NO_MATCH,
    Suffixes,
    continued,
)

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=120) | st.lists(st.integers(0, 2**31), max_size=60)


def longest(tokens: list[int], newest: int) -> int:
    """Tokens of the longest match whose place is at most `newest`, by trying all."""
    found = 0
    for place in range(1, newest + 1):
        length = 0
        while length < min(place, MAX_MATCH_TOKENS) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        found = max(found, length)
    return found


@given(text=TEXTS, repeated=st.booleans())
def test_a_match_is_where_the_text_stood_before(text: list[int], repeated: bool) -> None:
    """What it says is equal is equal, and something stands behind it; all of it, where the end stood so before."""
    text = text * 2 if repeated else text
    suffixes, tokens = Suffixes(len(text)), []
    for token in text:
        tokens.append(token)
        place, length = suffixes.find(tokens)
        assert (length == 0) == (place == 0)
        if length:
            assert length <= place < len(tokens)
            assert tokens[place - length : place] == tokens[len(tokens) - length :]
        assert length <= longest(tokens, len(tokens) - 1)


@given(
    text=st.lists(st.integers(0, 50), min_size=3, max_size=40, unique=True),
    more=st.integers(MAX_UNINDEXED_TOKENS + 2, 60),
)
def test_a_text_that_repeats_is_matched_as_far_as_it_does(text: list[int], more: int) -> None:
    tokens = (text * (2 + more // len(text)))[: len(text) + more]
    match = Suffixes(len(tokens)).find(tokens)
    assert match.length == min(more, MAX_MATCH_TOKENS)
    assert continued(tokens, match.position, 20) == [(text * 30)[len(tokens) + place] for place in range(20)]


def test_the_longest_match_wins_over_newer_ones() -> None:
    tokens = [9, 1, 2, 3, 4, 50, 8, 3, 4, 60, 7, 4, 70, *range(100, 100 + MAX_UNINDEXED_TOKENS), 1, 2, 3, 4]
    suffixes = Suffixes(100)
    match = suffixes.find(tokens)
    assert (tokens[match.position], match.length) == (50, 4)
    assert continued(tokens, match.position, 2) == [50, 8]


def test_one_token_alone_is_matched_where_no_pair_is() -> None:
    tokens = [1, 2, 3, *range(100, 100 + 2 * MAX_UNINDEXED_TOKENS), 2]
    match = Suffixes(100).find(tokens)
    assert (tokens[match.position], match.length) == (3, 1)
    assert Suffixes(100).find([1, 2, 3]) == NO_MATCH


def test_the_index_keeps_its_size_and_the_newest_of_a_long_text() -> None:
    text = list(range(MAX_INDEXED_TOKENS + 5000))
    suffixes = Suffixes(10 * MAX_INDEXED_TOKENS)
    for _ in range(len(text) // MAX_TOKENS_PER_EXTENSION + 1):  # so many are taken in for each search
        suffixes.find(text)
    arrays = [getattr(suffixes, name) for name in ("_newest", "_before", "_alone")]
    assert all(len(each) == MAX_INDEXED_TOKENS for each in arrays)
    assert suffixes.find([*text, 10, 11]) == NO_MATCH, "it is too long ago"
    near = len(text) - 20
    assert suffixes.find([*text, near, near + 1]) == (near + 2, 2)
