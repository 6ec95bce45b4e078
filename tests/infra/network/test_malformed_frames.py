"""Peers that send nonsense are cut off, for a while, each for itself; memory is bounded."""

from infra.network.malformed_frames import MAX_PEERS, MalformedFrames


def test_so_many_a_second_are_borne() -> None:
    frames: MalformedFrames[str] = MalformedFrames(3, 10.0)
    for second in range(5):
        assert not any(frames.count("a", second + at / 10) for at in range(3))
    assert frames.listens("a", 5.0)


def test_one_more_cuts_this_peer_off_for_a_while() -> None:
    frames: MalformedFrames[str] = MalformedFrames(3, 10.0)
    assert [frames.count("a", 0.1 * at) for at in range(4)] == [False, False, False, True]
    assert not frames.listens("a", 10.2) and frames.listens("b", 0.4)
    assert frames.listens("a", 10.31) and not frames.count("a", 10.31)


def test_of_many_peers_the_oldest_are_forgotten() -> None:
    frames: MalformedFrames[int] = MalformedFrames(1, 10.0)
    for peer in range(3 * MAX_PEERS):
        frames.count(peer, 0.0)
        frames.count(peer, 0.0)
    assert len(frames._counts) <= MAX_PEERS and len(frames._until) == MAX_PEERS
    assert frames.listens(0, 1.0) and not frames.listens(3 * MAX_PEERS - 1, 1.0)
