"""A larger model computes what the small one does."""

from pathlib import Path

import torch

from benchmarks.models.widened import Larger, widen
from tests.engine.grammars.answering import DEMO
from tests.engine.test_golden import make_executor

TEXT = list(range(100, 160))


def test_no_logit_changes_but_by_rounding(tmp_path: Path) -> None:
    """Sums of repeated numbers have another order; the logits are about 10 in size."""
    widen(DEMO, tmp_path / "larger", Larger(hidden=2, intermediate=4, heads=2, layers=6))
    small, larger = (make_executor(path) for path in (DEMO, tmp_path / "larger"))
    assert len(larger.engine.model_config.layers) == 6
    torch.testing.assert_close(larger.logits(TEXT), small.logits(TEXT), atol=1e-3, rtol=0)
