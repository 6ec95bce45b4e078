"""A payload's digest depends on its bytes and its place; a handoff's does not depend on the order of payloads."""

from itertools import permutations

from kvtransfer.digest import HandoffDigest, payload_digest

PLACES = ((0, 0, 0), (0, 0, 2), (0, 1, 0), (1, 0, 0))


def test_equal_payloads_in_other_places_have_other_digests() -> None:
    assert len({payload_digest(*place, [b"keys and values"]) for place in PLACES}) == len(PLACES)
    assert payload_digest(0, 0, 0, [b"keys", b" and values"]) == payload_digest(0, 0, 0, [b"keys and values"])


def test_payloads_may_come_in_any_order() -> None:
    found = set()
    for order in permutations(PLACES):
        digest = HandoffDigest()
        for place in order:
            digest.add(*place, payload_digest(*place, [b"kv"]))
        found.add(digest.value)
    assert len(found) == 1
