"""Identities that others see say nothing of how many there are."""

from itertools import islice

from contracts.ids import new_epoch, request_ids


def test_request_ids_have_their_gateways_epoch_and_no_order() -> None:
    epoch = new_epoch()
    made = list(islice(request_ids(epoch), 1000))
    assert len(set(made)) == 1000 and all(id.startswith(f"{epoch}-") and len(id) == 33 for id in made)
    assert sorted(made) != made, "a counter tells how many requests others make"
