"""The names of a model: its own first, then its aliases."""

import pytest

from contracts.errors import ConfigError
from contracts.served_names import MAX_SERVED_NAMES, served_names


def test_the_first_is_its_own_and_without_any_the_usual() -> None:
    assert served_names("", "usual") == ("usual",)
    assert served_names("qwen, gpt-4o,claude sonnet", "usual") == ("qwen", "gpt-4o", "claude sonnet")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,", "'' is no name"),
        ("a\tb", "is no name"),
        ("a," + "b" * 257, "is no name of 1 to 256"),
        ("a,b,a", "'a' is there twice"),
        (",".join(map(str, range(MAX_SERVED_NAMES + 1))), "65 names are more than 64"),
    ],
)
def test_other_texts_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        served_names(text, "usual")
