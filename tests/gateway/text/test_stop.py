"""Stop strings across the borders of pieces."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.text.stop import StopStrings

TEXT = st.text("ab\n", max_size=20)


def expected(text: str, stops: list[str]) -> tuple[str, str]:
    """The text before the stop string that ends first, found character by character, and that string."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, ""


@given(pieces=st.lists(TEXT, max_size=8), stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
def test_any_split(pieces: list[str], stops: list[str]) -> None:
    stopper = StopStrings(stops)
    sent, met = "", ""
    for piece in pieces:
        text, met = stopper.push(piece)
        sent += text
        if met:
            break
    else:
        sent += stopper.flush()
    assert (sent, met) == expected("".join(pieces), stops)


@given(text=TEXT, stop=st.text("ab", min_size=2, max_size=5))
def test_no_part_of_a_stop_string_leaves_early(text: str, stop: str) -> None:
    stopper = StopStrings([stop])
    sent = ""
    for character in text:
        piece, met = stopper.push(character)
        sent += piece
        if met:
            break
    assert expected(text, [stop])[0].startswith(sent)


def test_held_text_leaves_as_soon_as_it_cannot_be_a_stop_string() -> None:
    stopper = StopStrings(["</end>"])
    assert stopper.push("a</e") == ("a", "")
    assert stopper.push("x") == ("</ex", "")
    assert stopper.push("</end") == ("", "")
    assert stopper.push("> never") == ("", "</end>")
