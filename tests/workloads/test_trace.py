"""Traces in the forms in which they are published, and traces that are damaged."""

from pathlib import Path

import pytest

from contracts.errors import ConfigError
from workloads.request import Span, TimedRequest
from workloads.trace import read_trace

MOONCAKE = """\
{"timestamp": 27000, "input_length": 1030, "output_length": 500, "hash_ids": [46, 47, 2353]}
{"timestamp": 30000, "input_length": 700, "output_length": 2, "hash_ids": [46, 47]}
{"timestamp": 30000, "input_length": 9, "output_length": 1}
"""
BURST_GPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


def read(tmp_path: Path, text: str, speed: float = 1.0) -> list[TimedRequest]:
    path = tmp_path / "trace"
    path.write_text(text)
    return list(read_trace(path, speed))


def shapes(requests: list[TimedRequest]) -> list[tuple[float, int, int]]:
    return [(round(each.due_s, 3), each.request.prompt_tokens, each.request.output_tokens) for each in requests]


def test_mooncakes_blocks_are_equal_prefixes(tmp_path: Path) -> None:
    first, second, third = read(tmp_path, MOONCAKE)
    assert shapes([first, second, third]) == [(0.0, 1030, 500), (3.0, 700, 2), (3.0, 9, 1)]
    assert first.request.spans == (Span(46, 512), Span(47, 512), Span(2353, 6))
    assert second.request.spans == (Span(46, 512), Span(47, 188))
    assert third.request.spans[0].seed not in {46, 47, 2353}


def test_tables_of_burst_gpt_and_azure(tmp_path: Path) -> None:
    burst = read(tmp_path, BURST_GPT)
    assert shapes(burst) == [(0.0, 472, 18), (113.0, 417, 276)]
    assert burst[0].request.spans != burst[1].request.spans
    assert shapes(read(tmp_path, AZURE)) == [(0.0, 374, 44), (4.315, 396, 109)]


def test_speed_divides_the_gaps(tmp_path: Path) -> None:
    assert [each.due_s for each in read(tmp_path, MOONCAKE, speed=2.0)] == [0.0, 1.5, 1.5]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: expected Mooncake's JSON lines"),
        ("a,b\n1,2\n", "line 1: expected Mooncake's JSON lines"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
        (MOONCAKE + '{"timestamp": 5}\n', "line 4: .*input_length"),
        (MOONCAKE + '{"timestamp": 29000, "input_length": 9, "output_length": 1}\n', "line 4: its time is before"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 1}\n', "line 1: .*from 1 to 1048576 tokens"),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [7]}\n',
            "line 1: 600 tokens are 2 blocks of 512, and hash_ids names 1",
        ),
        (AZURE + "2023-11-16 18:16:00,,12\n", "line 4: .*not a time and two numbers"),
        (AZURE + "2023-11-16 18:16:00\n", "line 4: .*not a time and two numbers"),
        (AZURE + "nan,3,12\n", "line 4: .*not a time and two numbers"),
        (AZURE + "2023-11-16 18:16:00,inf,12\n", "line 4: .*not a time and two numbers"),
        (AZURE + "2023-11-16 18:16:00,1e18,12\n", "line 4: .*from 1 to 1048576 tokens"),
        (AZURE + f'2023-11-16 18:16:00,"{200_000 * "5"}",12\n', "is not a text file of such lines"),
    ],
)
def test_a_damaged_trace_is_refused_with_its_line(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"--trace.*{error}"):
        read(tmp_path, text)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        list(read_trace(tmp_path / "nothing"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not a text file"):
        list(read_trace(tmp_path / "binary"))
