"""A prefill worker whose model has windows: their blocks are told when the last of them is taken, and only those go."""

from infra.redis.worker_load import HeldBlocks
from kvtransfer.events import BlocksTaken, CommitHandoff, LayerReady, OpenHandoff, Unpinned
from tests.worker.role_bench import WINDOWED
from tests.worker.roles.prefill_jobs import closed, job, prefill_worker

TEXT_TOKENS = 8 * 6
SEEN = range(10, 12)
"""The blocks of a text of 48 tokens that a window of 6 behind it sees: tokens 43 to 47."""


def test_a_window_s_blocks_are_told_once_and_before_its_first_layer() -> None:
    bench, policy = prefill_worker(spec=WINDOWED)
    policy.receive(job(1, tokens=TEXT_TOKENS), 1.0)
    bench.step(policy)  # 16 tokens
    (opened,) = bench.heard(OpenHandoff)
    assert [len(table) for table in opened.blocks] == [0, 12]
    assert bench.heard(LayerReady) == [LayerReady(1, 1, 0, 4), LayerReady(1, 1, 2, 4)], (
        "of the window nothing moves yet"
    )
    assert policy.load().held == HeldBlocks(pinned=12)
    bench.said.clear()
    bench.run(policy)
    said = [event for event in bench.said if isinstance(event, BlocksTaken | LayerReady | CommitHandoff)]
    of_window = [event for event in said if not isinstance(event, CommitHandoff) and event.group == 0]
    (taken,) = [event for event in of_window if isinstance(event, BlocksTaken)]
    assert len(taken.blocks) == 12 and all(taken.blocks[SEEN.start :])
    assert of_window[0] is taken and of_window[-1] == LayerReady(1, 0, 1, 12) and isinstance(said[-1], CommitHandoff)
    assert policy.load().held == HeldBlocks(pinned=12 + len(SEEN))
    policy.receive(closed(1, "accepted"), 2.0)
    assert bench.blocks.groups[0].used == len(SEEN), "frames may still be read"
    policy.receive(Unpinned(1), 2.0)
    assert bench.blocks.used_count == 0 and not policy.busy()
