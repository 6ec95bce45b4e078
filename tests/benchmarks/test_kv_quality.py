"""The codecs' quality gate: what is exact is exact, what a codec loses is seen, and it prints a table."""

import re

import pytest
import torch

from benchmarks.kv_quality import compare, main, make
from benchmarks.quality import pieces, score
from tests.benchmarks.test_quality import DEMO


def test_without_a_codec_a_handoff_changes_nothing_and_with_one_a_little() -> None:
    """In fp32 a row's bits depend on its text only; the demo model is sure enough not to change its mind."""
    sender, receiver = make(str(DEMO), "fp32"), make(str(DEMO), "fp32")
    texts = pieces(DEMO, "Tell me a story about a fox and a lantern. " * 20, 199)
    whole, behind = compare(sender, receiver, texts)
    everything = score(sender, texts)
    assert torch.equal(whole.log_probabilities, everything.log_probabilities[len(texts[0]) // 2 :])
    assert torch.equal(behind["none"].log_probabilities, whole.log_probabilities)
    for codec in ("fp8", "int8"):
        error = (behind[codec].log_probabilities - whole.log_probabilities).abs()
        assert error.max() > 0 and error.mean() < 0.05


def test_it_prints_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["kv_quality", "--model", str(DEMO), "--tokens", "300"])
    assert main() == 0
    said = capsys.readouterr().out
    assert re.search(r"bf16, \d+ positions behind a handoff\n", said)
    rows = re.findall(
        r"^\| (\w+ \w+) \| (\d+\.\d)% \| \d+\.\d{4} \| (\d\.\d{4}) \| (\d+\.\d\d)% \|$", said, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["codec none", "codec fp8", "codec int8", "pool int8", "pool fp8"]
    assert rows[0] == ("codec none", "100.0", "1.0000", "100.00") and float(rows[1][1]) < 51
    assert [row[1] for row in rows[3:]] == ["51.6", "51.6"], "a byte for each of 64 numbers, and two for the scale"
    assert all(0.98 < float(row[2]) < 1.02 for row in rows[1:])
