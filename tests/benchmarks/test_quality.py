"""The quality gate: its figures are those of the logits, and it prints them for the demo model."""

import math
import re
from pathlib import Path

import pytest
import torch

from benchmarks.quality import compare, divergence, main, pieces, score, score_exactly
from demo_model import split
from tests.engine.test_golden import make_executor
from tests.reference import load_reference

DEMO = Path(split.__file__).parent / "weights"


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


def test_divergence_is_that_of_some_tokens_and_of_all_others_together() -> None:
    p, q = torch.tensor([[0.5, 0.25, 0.125, 0.125]]), torch.tensor([[0.25, 0.5, 0.25, 0.0]])
    whole = divergence(p[:, :3].log(), torch.tensor([[0.25, 0.5, 0.125]]).log())
    assert float(whole) == pytest.approx(0.25 * math.log(2))  # 1/2 log 2 - 1/4 log 2, and nothing of the others
    coarse = divergence(p[:, :1].log(), q[:, :1].log())
    assert float(coarse) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75))
    assert float(divergence(p.log(), p.log())) == pytest.approx(0)


def test_a_side_is_compared_position_by_position() -> None:
    """Scores the demo model beside itself: nothing moves.

    With int4, what moves is what the other side's own scores say.
    """
    texts = pieces(DEMO, "Tell me a story about a fox and a lantern. " * 60, 700)
    plain = make_executor(DEMO, max_model_len=512)
    exact = score_exactly(plain, texts)
    same = compare(plain, texts, exact)
    assert same.ratio(exact.scores) == (1.0, 0.0) and same.agreement(exact.scores) == 1
    assert abs(same.divergence) < 1e-6
    small = make_executor(DEMO, max_model_len=512, quantization="int4")
    moved = compare(small, texts, exact)
    ratio, error = moved.ratio(exact.scores)
    assert ratio == pytest.approx(moved.scores.perplexity / exact.scores.perplexity)
    assert torch.equal(moved.scores.likeliest, score(small, texts).likeliest)
    assert 0 < error < 0.1 and 0.001 < moved.divergence < 1 and 0.8 < moved.agreement(exact.scores) < 1


def test_it_prints_a_line_for_each_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["quality", "--model", str(DEMO), "--tokens", "500"])
    assert main() == 0
    said = capsys.readouterr().out
    rows = re.findall(
        r"^\| (\w+) \| (\w+) \| \d+\.\d \| \d+\.\d{4} \| (\d\.\d{4}) ± \d\.\d{4} \| (≤ \S+|-) \|", said, re.MULTILINE
    )
    assert [(weights, kv, wanted) for weights, kv, _, wanted in rows] == [
        ("bf16", "bf16", "-"),
        ("int8", "bf16", "≤ 1.005"),
        ("int4", "bf16", "≤ 1.050"),
        ("fp8", "bf16", "≤ 1.010"),
        ("bf16", "fp8", "-"),
        ("bf16", "int8", "-"),
    ]
    assert all(float(ratio) < 1.1 for _, _, ratio, _ in rows)
