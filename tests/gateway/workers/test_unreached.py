"""Pairs that cannot reach each other: one line when it is seen, one when it is over, none for who is dead."""

from gateway.workers.unreached import UnreachedPairs
from infra.redis.records import Role, UnreachedPeer, WorkerRecord

AT = "tcp://10.0.0.2:20001"


def record(epoch: str, role: Role, *unreached: str) -> WorkerRecord:
    peers = tuple(UnreachedPeer(peer, AT) for peer in unreached)
    return WorkerRecord(
        epoch, role, f"tcp://{epoch}:1", AT, "m", "f", "c", 16, 8192, "cpu", "fp32", 0.0, unreached=peers
    )


P1, P2, D = record("p1", "prefill", "d"), record("p2", "prefill", "d"), record("d", "decode")
FREE = record("p1", "prefill")


def test_a_pair_is_named_once_with_both_addresses_and_when_it_is_over() -> None:
    pairs = UnreachedPairs("g")
    way = f"from prefill worker p1 at tcp://p1:1 to decode worker d at {AT}"
    assert pairs.look({"p1": P1, "d": D}, []) == [f"no way {way}: requests take others"]
    assert [(pair.sender, pair.receiver, pair.address) for pair in pairs.pairs] == [("p1", "d", AT)]
    assert pairs.look({"p1": P1, "d": D}, []) == []
    assert pairs.look({"p1": FREE, "d": D}, []) == [f"there is a way again {way}"]
    assert pairs.pairs == ()


def test_several_pairs_are_one_line() -> None:
    (line,) = UnreachedPairs("g").look({"p1": P1, "p2": P2, "d": D}, [])
    assert line.count("from prefill worker") == 2


def test_whom_the_gateway_itself_does_not_reach_is_a_pair() -> None:
    pairs = UnreachedPairs("g")
    assert pairs.look({}, [D]) == ["no way from this gateway to decode worker d at tcp://d:1: requests take others"]
    assert pairs.look({"d": D}, []) == ["there is a way again from this gateway to decode worker d at tcp://d:1"]


def test_who_has_left_is_no_end_of_a_pair() -> None:
    pairs = UnreachedPairs("g")
    pairs.look({"p1": P1, "d": D}, [])
    assert pairs.look({"p1": P1}, []) == [] and pairs.pairs == ()
