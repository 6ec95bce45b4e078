"""What the words of a command line decide by themselves: help, and words that no command takes."""

import subprocess
import sys

import pytest

from contracts.version import BATON_VERSION
from infra.cli import spell
from launcher.__main__ import command
from launcher.options import ROOT, StatusConfig, UpConfig
from launcher.words import COMMANDS, HELP, answer


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_help_names_is_there(name: str) -> None:
    assert callable(command(name))


@pytest.mark.parametrize("words", [[], ["-h"], ["help"], ["--help", "up"]])
def test_help(words: list[str]) -> None:
    assert answer(words, ROOT) == (0, HELP)


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--help"],
        ["up", "--dashboard-port=0", "--slo", "ttft=1s", "-h"],
        ["chat", "--url", "http://host--x"],
        ["key", "new", "me", "--operator"],
        ["run", "decode", "--announce", "eth0", "--redis", "redis://host"],
        ["manifests", "--namespace", "llm"],
        ["status", "--on", "ray"],
        ["test", "-k", "launcher", "--help", "--lf"],
        ["ray", "start", "--no-such-option-of-ours"],
        ["run", "redis", "--requirepass", "word"],
    ],
)
def test_words_that_some_command_takes_are_its_own_matter(words: list[str]) -> None:
    assert answer(words, ROOT) is None


def test_every_option_is_found_by_its_name() -> None:
    for config in (UpConfig(prefill=1, decode=1), StatusConfig()):
        for each in spell(config):
            assert answer(["up", each.option], ROOT) is None


TYPOS = [
    ["fly"],
    ["run", "decode", "--requirepass"],
    ["up", "--prot"],
    ["down", "--nwo=yes"],
    ["test", "--hlep"],
    ["test", "-x", "--halp"],
]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["statsu"], "'statsu' is no command of baton (did you mean status?)"),
        (["up", "--prot=1"], "--prot: no such option (did you mean --port?)"),
        (["test", "tests/launchr"], "tests/launchr: there are no such tests (did you mean tests/launcher?)"),
        (
            ["test", "-x", "tests/launcher/test_wrods.py::test_a"],
            "tests/launcher/test_wrods.py: there are no such tests",
        ),
        (["test", "-k", "words", "nowhere"], "nowhere: there are no such tests"),
    ],
)
def test_a_typo_is_named_with_the_nearest_right_word(words: list[str], sentence: str) -> None:
    answered = answer(words, ROOT)
    assert answered is not None and answered[1].startswith(f"error: {sentence}")


@pytest.mark.parametrize(
    "words",
    [["-k", "no/such"], ["-n", "2", "tests/launcher"], ["-x", "--maxfail", "2"], ["tests/test_docs.py::test_a"]],
)
def test_values_of_pytests_options_are_no_paths(words: list[str]) -> None:
    assert answer(["test", *words], ROOT) is None


def test_the_version() -> None:
    assert answer(["--version"], ROOT) == (0, f"baton {BATON_VERSION}\n")


@pytest.mark.parametrize("words", TYPOS)
def test_words_that_no_command_takes(words: list[str]) -> None:
    answered = answer(words, ROOT)
    assert answered is not None and answered[0] == 2 and answered[1].startswith("error: ")


def test_it_needs_the_standard_library_alone() -> None:
    code = "import sys, launcher.words; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    result = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(result.stdout.split()) - set(sys.stdlib_module_names) <= {"launcher", "contracts", "infra", "__main__"}
