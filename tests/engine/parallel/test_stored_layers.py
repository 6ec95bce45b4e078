"""A layer is told as stored when all ranks have stored it, so that another rank's KV can be read then."""

from pathlib import Path

from engine.executor import Executor
from engine.parallel.rank_group import RankGroup
from engine.plan import StepPlan
from tests.engine.drive import answers
from tests.engine.parallel.test_widths import executor_of
from tests.engine.parallel.threads import Meeting, on_ranks
from tests.reference import build_model, golden, make_prompts
from tests.variants import VARIANTS
from tests.waiting import wait_until


def test_a_layer_is_told_when_the_slowest_rank_has_stored_it(tmp_path: Path) -> None:
    """Rank 1 counts a layer as stored only when rank 0 waits for it; most steps here draw no token."""
    config = VARIANTS["llama"]()
    directory = build_model(tmp_path / "model", config)
    expected = golden(directory, make_prompts([33, 70], config.vocab_size), 3)
    meeting, stored = Meeting(2), list[int]()
    told: list[tuple[int, int]] = []  # layers, and how many were stored before

    def found(group: RankGroup) -> list[list[int]]:
        engine = executor_of(directory, group).engine

        def tell(plan: StepPlan, kv_group: int, layer: int) -> None:
            told.append((layer, len(stored)))

        executor = Executor(engine, tell if group.shard.rank == 0 else None)
        go_on = executor._layers.stored

        def store(plan: StepPlan, layer: int) -> None:
            wait_until(lambda: meeting.waiting() == 1, "rank 0 to wait for a sum or a meeting")
            stored.append(layer)
            go_on(plan, layer)

        if group.shard.rank == 1:
            executor._layers.stored = store  # type: ignore[method-assign]
        return answers(executor, expected, stagger=1, chunk=13)

    assert on_ranks(2, found, meeting) == [[each.tokens for each in expected]] * 2
    assert [layer for layer, _ in told] == stored
    assert all(before > at for at, (_, before) in enumerate(told))
