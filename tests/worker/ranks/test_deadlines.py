"""Rank 0 waits for another rank's word no longer than it says, and names the rank."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import worker.ranks.leading
from contracts.errors import RankError
from engine.parallel.distributed import MeetingFile
from engine.parallel.shared_memory import RankWires
from infra.config.engine import EngineConfig
from worker.ranks.leading import RankStreams


class Mute(RankStreams):
    """Ranks that read orders and say what they are told to, or nothing."""

    def begin(self, rank: int, stream: socket.socket, link: RankWires | MeetingFile) -> None:
        self.theirs = stream


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mute]:
    monkeypatch.setattr(worker.ranks.leading, "MAX_ANSWER_S", 0.2)
    ranks = Mute(EngineConfig(model="model"), 2, 1)
    yield ranks
    ranks.theirs.close()
    ranks.close()


def test_a_rank_that_does_not_load_the_model_in_time_is_named(mute: Mute) -> None:
    with pytest.raises(RankError, match=r"^rank 1 did not load the model in 0\.2 s$"):
        mute.make_pool([2], [4096], 0)


def test_a_rank_that_ends_before_it_has_read_its_order_is_named(mute: Mute) -> None:
    mute.theirs.close()
    with pytest.raises(RankError, match=r"^rank 1 has ended$"):
        mute.make_pool([2], [4096], 0)


def test_a_rank_that_does_not_answer_in_time_is_named(mute: Mute) -> None:
    with pytest.raises(RankError, match=r"^rank 1 has not answered in 0\.2 s$"):
        mute.load_adapter(Path("adapter"))
