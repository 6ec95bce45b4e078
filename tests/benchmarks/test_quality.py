"""The quality gate: its figures are those of the logits, and it prints them for the demo model."""

import re
from pathlib import Path

import pytest
import torch

from benchmarks.quality import Scores, main, pieces, score
from demo_model import stories
from tests.engine.test_golden import make_executor
from tests.reference import load_reference

DEMO = Path(stories.__file__).parent / "weights"


def test_scores_are_the_references() -> None:
    """Transformers' own, in fp32, where neither rounds what the other does not."""
    texts = pieces(DEMO, "Tell me a story about a fox and a lantern. " * 60, 700)
    assert [len(text) for text in texts] == [512, 188]
    found = score(make_executor(DEMO, max_model_len=512), texts)
    reference = load_reference(DEMO)
    with torch.no_grad():
        logits = [reference(torch.tensor([text])).logits[0, :-1] for text in texts]
    chosen = [
        each.log_softmax(-1).gather(1, torch.tensor(text[1:])[:, None])
        for each, text in zip(logits, texts, strict=True)
    ]
    torch.testing.assert_close(found.log_probabilities, torch.cat(chosen)[:, 0], rtol=1e-4, atol=1e-4)
    assert torch.equal(found.likeliest, torch.cat(logits).argmax(-1))


def test_perplexity_of_even_odds() -> None:
    assert Scores(torch.full((5,), 0.25).log(), torch.zeros(5)).perplexity == pytest.approx(4)


def test_it_prints_both_sides(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["quality", "--model", str(DEMO), "--tokens", "500"])
    assert main() == 0
    said = capsys.readouterr().out
    assert re.findall(r"quantization (\w+): perplexity \d+\.\d{4}\n", said) == ["none", "int8"]
    assert re.search(r"positions: perplexity x \d\.\d{4}, the likeliest token is the same at \d+\.\d\d%\n", said)


def test_a_text_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["quality", "--model", str(DEMO), "--text", "no-such-file"])
    assert main() == 2
    assert "no-such-file" in capsys.readouterr().err
