"""A selection of tests runs without the checks of the whole tree."""

import pytest

from launcher.commands.run_tests import selects


@pytest.mark.parametrize(
    "words",
    [["-k", "launcher"], ["-klauncher"], ["-m", "gpu"], ["tests/launcher"], ["-x", "tests/test_docs.py::test_a"]],
)
def test_a_word_a_mark_or_a_path_selects(words: list[str]) -> None:
    assert selects(words)


@pytest.mark.parametrize("words", [[], ["--durations=70", "--maxfail=3"], ["-x"], ["-p", "no:xdist"]])
def test_an_option_selects_nothing(words: list[str]) -> None:
    assert not selects(words)
