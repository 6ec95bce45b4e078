"""A larger model computes what the small one does."""

from pathlib import Path

import torch

from benchmarks.models.widened import Larger, widen, widen_heads
from engine.speculation.proposers.medusa import MedusaProposer
from tests.engine.grammars.answering import DEMO
from tests.engine.test_golden import make_engine, make_executor

TEXT = list(range(100, 160))


def test_no_logit_changes_but_by_rounding(tmp_path: Path) -> None:
    """Sums of repeated numbers have another order; the logits are about 10 in size."""
    widen(DEMO, tmp_path / "larger", Larger(hidden=2, intermediate=4, heads=2, layers=6))
    small, larger = (make_executor(path) for path in (DEMO, tmp_path / "larger"))
    assert len(larger.engine.model_config.layers) == 6
    torch.testing.assert_close(larger.logits(TEXT), small.logits(TEXT), atol=1e-3, rtol=0)


@torch.inference_mode()
def test_larger_heads_guess_what_the_small_ones_do(tmp_path: Path) -> None:
    """Of states as the larger model has them: repeated, and divided by how often."""
    larger, heads = Larger(hidden=2, intermediate=1, heads=1, layers=4), DEMO.parent / "medusa"
    widen(DEMO, tmp_path / "larger", larger)
    widen_heads(heads, tmp_path / "heads", larger)
    states, found = torch.randn(3, 192), []
    for model, own, times in ((DEMO, heads, 1), (tmp_path / "larger", tmp_path / "heads", 2)):
        proposer = make_engine(model, speculation="medusa", medusa=str(own)).proposer
        assert isinstance(proposer, MedusaProposer)
        found.append(proposer.heads.logits(states.repeat(1, times) / times, proposer.model))
    torch.testing.assert_close(found[1], found[0], atol=1e-3, rtol=0)
