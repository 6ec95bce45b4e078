"""Stop strings across the borders of pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.stop import NO_STOPS, StopSearch, StopStrings
from tests.effort import lines_run

TEXT = st.text("ab\n", max_size=20)
PIECES = st.lists(TEXT, max_size=8)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=6), min_size=1, max_size=4)
STOP_LENGTH = 256
ATTACKS = {
    "one that nearly comes, others that never do": ["a" * 255 + "b"] + [chr(99 + n) + "a" * 255 for n in range(15)],
    "all begin alike": ["a" * 255 + chr(99 + n) for n in range(16)],
    "each is the end of another": ["a" * (STOP_LENGTH - n) + "b" for n in range(1, 17)],
}


def expected(text: str, stops: list[str]) -> tuple[str, str]:
    """The text before the stop string that ends first, found character by character, and that string."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, ""


class Naive:
    """Looks at the whole text for every stop string and every beginning of one, each time anew."""

    def __init__(self, stops: list[str]) -> None:
        self.stops, self.held = stops, ""

    def push(self, text: str) -> tuple[str, str]:
        text, self.held = self.held + text, ""
        before, met = expected(text, self.stops)
        if met:
            return before, met
        begun = [size for stop in self.stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
        sent = len(text) - max(begun, default=0)
        self.held = text[sent:]
        return text[:sent], ""


@given(pieces=PIECES, stops=STOPS)
def test_any_split(pieces: list[str], stops: list[str]) -> None:
    search = StopSearch(StopStrings(stops))
    sent, met = "", ""
    for piece in pieces:
        text, met = search.push(piece)
        sent += text
        if met:
            break
    else:
        sent += search.flush()
    assert (sent, met) == expected("".join(pieces), stops)


@given(answers=st.lists(PIECES, min_size=1, max_size=3), stops=STOPS)
def test_each_push_sends_and_holds_back_what_a_naive_search_does(answers: list[list[str]], stops: list[str]) -> None:
    """Of several answers of one request, too, which share the stop strings; and behind a stop string that was met."""
    shared = StopStrings(stops)
    pairs = [(StopSearch(shared), Naive(stops)) for _ in answers]
    for turn in range(max(map(len, answers))):
        for (search, naive), pieces in zip(pairs, answers, strict=True):
            if turn < len(pieces):
                assert search.push(pieces[turn]) == naive.push(pieces[turn])
    assert [search.flush() for search, _ in pairs] == [naive.held for _, naive in pairs]
    assert [search.push("aab") for search, _ in pairs] == [Naive(stops).push("aab") for _ in pairs], "it begins anew"


def test_text_without_stop_strings_passes() -> None:
    assert StopSearch(NO_STOPS).push("all") == ("all", "")


@pytest.mark.parametrize("name", ATTACKS)
def test_each_character_is_read_once_whatever_the_stop_strings_are(name: str) -> None:
    """A search for every beginning of every stop string runs thousands of lines for a character."""
    stops, text = ATTACKS[name], "a" * 3 * STOP_LENGTH + ("a" * 100 + "z") * 20
    search: list[StopSearch] = []
    made = lines_run(lambda: search.append(StopSearch(StopStrings(stops))))
    assert made < 20 * len(stops), "the states are made as the text reaches them"
    characters = [lines_run(lambda character=character: search[0].push(character)) for character in text]  # type: ignore[misc]
    assert sum(characters) < 30 * len(text)
    assert search[0].flush() == ""
