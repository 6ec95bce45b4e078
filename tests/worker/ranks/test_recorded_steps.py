"""Ranks compute as on GPUs, each in a process: Triton's operators, recorded steps, sums by `torch.distributed`."""

from pathlib import Path

from msgspec.structs import replace
from torch import Tensor

from engine.executor import Executor
from engine.plan import StepPlan
from engine.start.load import load_engine
from infra.config.engine import EngineConfig
from tests.engine.drive import answers
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS
from worker.ranks.starting import RankProcesses

NEW_TOKENS = 3


class Watched(RankProcesses):
    """Counts the sums of all ranks in each recorded step."""

    def watch_sums(self) -> None:
        self.sums: list[int] = []
        collective = self.group.collective
        add, self._is_recorded = collective.all_reduce, False

        def counted(own: Tensor) -> Tensor:
            if self._is_recorded:
                self.sums[-1] += 1
            return add(own)

        collective.all_reduce = counted  # type: ignore[method-assign]

    def launch(self, plan: StepPlan, recorded: bool) -> None:
        self._is_recorded = recorded
        if recorded:
            self.sums.append(0)
        super().launch(plan, recorded)


def test_two_ranks_give_the_references_tokens_by_recorded_steps(tmp_path: Path) -> None:
    """Experts and attention; a recorded step has padding rows, which ranks sum as well."""
    model = VARIANTS["qwen3-moe"]()
    model.num_hidden_layers = 1
    directory = build_model(tmp_path / "model", model)
    expected = golden(directory, make_prompts([1, 6], 100), NEW_TOKENS)
    config = EngineConfig(
        model=str(directory),
        device="cpu",
        cpu_backend="triton",
        dtype="fp32",
        kv_memory=1 << 20,
        max_model_len=32,
        max_sequences=2,
        max_batch_tokens=8,
    )
    ranks = Watched(replace(config, decode_graphs="on"), 2, 1, "gloo")
    try:
        engine = load_engine(config, lambda stage, percent: None, group=ranks.group, peers=ranks)
        executor = Executor(engine)
        ranks.watch_sums()
        assert answers(executor, expected, stagger=0) == [each.tokens for each in expected]
        assert ranks.sums == [1 + 2 * model.num_hidden_layers] * (NEW_TOKENS - 1), "the embedding's, and 2 of a layer"
    finally:
        ranks.close()
