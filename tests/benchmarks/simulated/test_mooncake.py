"""The generated hour has the published figures, a day's hours are a wave, and both are traces that `simulate` reads."""

import random
from collections import Counter
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

from benchmarks.simulated.mooncake import REQUESTS_PER_HOUR, generate
from workloads.trace import read_trace


def test_the_hour_has_the_published_figures(tmp_path: Path) -> None:
    rows = list(generate(random.Random(0)))
    assert len(rows) == REQUESTS_PER_HOUR and rows[-1].timestamp < 3_600_000
    assert fmean(row.input_length for row in rows) == pytest.approx(8596, rel=0.05)
    assert fmean(row.output_length for row in rows) == pytest.approx(182, rel=0.05)
    seen: set[int] = set()
    blocks = found = 0
    for row in rows:
        blocks, found = blocks + len(row.hash_ids), found + sum(each in seen for each in row.hash_ids)
        seen.update(row.hash_ids)
    assert found / blocks == pytest.approx(0.59, abs=0.03)
    (tmp_path / "hour").write_bytes(b"\n".join(map(msgspec.json.encode, rows[:50])))
    read = list(read_trace(tmp_path / "hour"))
    assert [each.request.prompt_tokens for each in read] == [row.input_length for row in rows[:50]]


def test_a_wave_moves_requests_from_midnight_to_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.simulated.mooncake.REQUESTS_PER_HOUR", 100)
    rows = list(generate(random.Random(0), hours=24, wave=0.6))
    times = [row.timestamp for row in rows]
    counts = Counter(int(at // 3_600_000) for at in times)
    assert times == sorted(times) and len(rows) == pytest.approx(2400, abs=12)
    assert (counts[0], counts[6], counts[12]) == (41, 108, 159)
    assert sum(set(row.hash_ids).isdisjoint(rows[0].hash_ids) for row in rows) > 2000, "blocks of hours differ"
