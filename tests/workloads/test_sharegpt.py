"""Recorded conversations: messages in turn, answers as long as the recorded ones, refusals with the file."""

import json
import random
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from workloads.sharegpt import RecordedChats, read_conversations


def write(path: Path, *talks: list[tuple[str, str]]) -> Path:
    entries = [
        {"id": "x", "conversations": [{"from": speaker, "value": text} for speaker, text in talk]} for talk in talks
    ]
    path.write_text(json.dumps(entries))
    return path


def test_each_turn_has_the_recorded_messages_before_it(tmp_path: Path) -> None:
    talk = [("human", "a" * 40), ("gpt", "b" * 80), ("human", "c" * 20), ("gpt", "d" * 8), ("human", "alone")]
    conversations = read_conversations(write(tmp_path / "s.json", talk, [("gpt", "first")], [("human", "only")]))
    first = next(RecordedChats(conversations, 2.0).requests(random.Random(1)))
    turns = list(first.turns())
    assert [turn.chat for turn in turns] == [("a" * 40,), ("a" * 40, "b" * 80, "c" * 20)]
    assert [turn.output_tokens for turn in turns] == [20, 2] and [turn.prompt_tokens for turn in turns] == [10, 35]
    assert first.then is not None and first.then.pause_s > 0
    assert turns[1].spans[0] == turns[0].spans[0]


@pytest.mark.parametrize(
    ("text", "error"),
    [("{}", "is no array of ShareGPT's"), ('[{"conversations": []}]', "has no conversation that begins with")],
)
def test_a_file_without_conversations_is_refused(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(ConfigError, match=error):
        read_conversations(tmp_path / "s.json")
