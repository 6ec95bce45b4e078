"""Each rank has its part of a block in its own part of the host tier."""

from pathlib import Path

from engine.executor import Executor
from engine.plan import BlockMove, StepPlan, Work
from tests.engine.drive import GREEDY
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS
from tests.worker.ranks.follower_threads import engine_of_ranks

TIER_BYTES = 1 << 20


def test_a_block_comes_back_to_all_ranks(tmp_path: Path) -> None:
    """What ranks have in the tier together is what was asked for; another text is in the blocks meanwhile."""
    model = build_model(tmp_path / "model", VARIANTS["llama"]())
    first, other = make_prompts([20, 40], 320)
    settings: dict[str, object] = dict(cpu_backend="native", host_kv_memory=TIER_BYTES, host_kv_directory=str(tmp_path))
    with engine_of_ranks(model, 2, **settings) as (engine, _):
        pools = engine.rank_pools
        assert pools is not None
        assert engine.host_slots == TIER_BYTES // (2 * engine.pool.spec.block_bytes())
        assert engine.memory.host_tier_bytes == TIER_BYTES
        assert engine.rates.host_bytes_per_second > 0

        def stored(blocks: list[int]) -> list[bytes]:
            return [b"".join(pools.begin_read(0, layer, blocks)()) for layer in range(4)]

        executor, last = Executor(engine), engine.host_slots - 1
        executor.launch(StepPlan(0, [Work(1, 0, first, ([1, 2],), GREEDY)]))
        executor.collect()
        before = stored([1, 2])
        executor.move([BlockMove("out", 0, 1, last), BlockMove("out", 0, 2, 3)])
        executor.launch(StepPlan(1, [Work(2, 0, other, ([2, 1, 3],), GREEDY)]))
        executor.collect()
        assert stored([1, 2]) != before
        executor.move([BlockMove("in", 0, 3, 5), BlockMove("in", 0, last, 4)])
        assert stored([4, 5]) == before
