"""Runs the plans of rank 0 on another rank: the same products over this rank's part, without drawing tokens."""

import torch

from engine.device import device_errors
from engine.executor import Executor
from engine.model.batch import Sampled
from engine.plan import StepPlan
from engine.speculation.verify.verification import works_by_row


class RankExecutor(Executor):
    """An executor whose tokens are drawn by rank 0."""

    def follow(self, plan: StepPlan) -> None:
        """Runs a step and keeps the tokens that rank 0 has drawn. Raises `DeviceError`, and `RankError` among them."""
        with torch.inference_mode(), device_errors():
            self.engine.pool.begin_step(plan.works, is_read=False)
            self._logits(plan, self._before)
            works = works_by_row([work for work in plan.works if work.sampling is not None])
            count = sum(len(work.samples) for work in works)
            tokens = torch.empty(count, dtype=torch.int64, device=self._device)
            self._before = Sampled(self.engine.group.collective.broadcast(tokens) if works else tokens, works)
