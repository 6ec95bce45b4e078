"""A selection of tests runs without the checks of the whole tree, of which mypy runs beside the tests."""

import pytest

from launcher.commands.run_tests import beside, selects


@pytest.mark.parametrize(
    "words",
    [["-k", "launcher"], ["-klauncher"], ["-m", "gpu"], ["tests/launcher"], ["-x", "tests/test_docs.py::test_a"]],
)
def test_a_word_a_mark_or_a_path_selects(words: list[str]) -> None:
    assert selects(words)


@pytest.mark.parametrize("words", [[], ["--durations=70", "--maxfail=3"], ["-x"], ["-p", "no:xdist"]])
def test_an_option_selects_nothing(words: list[str]) -> None:
    assert not selects(words)


@pytest.mark.parametrize(
    ("module", "status", "said"), [("this", 0, "The Zen of Python"), ("no_such_module", 1, "No module named")]
)
def test_a_check_beside_the_tests_says_all_at_its_end(
    module: str, status: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with beside("check", (module,)) as statuses:
        print("dots")
    printed = capfd.readouterr().out
    assert statuses == [status] and said in printed
    assert f"check: {'failed' if status else 'passed'} in " in printed.splitlines()[-1]
    with pytest.raises(KeyboardInterrupt), beside("check", ("http.server", "0")):  # it would never end
        raise KeyboardInterrupt
