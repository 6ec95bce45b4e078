"""A directory holds nothing of a worker that has left, whatever its requests do behind it."""

import weakref

from tests.gateway.workers.listed import listed
from tests.gateway.workers.test_routes_by_cost import D, worker


def test_a_worker_that_has_left_is_forgotten_where_every_request_has_an_adapter() -> None:
    gone, stays = worker("gone", D), worker("stays", D)
    directory = listed([gone, stays])
    directory.remove(gone)
    gone.own_sequences -= 1  # a request there ends, or its connection closes
    gone.usable = not gone.usable
    directory.serving("adapter's digest")
    left = weakref.ref(gone)
    del gone
    assert left() is None and [each.epoch for each in directory] == ["stays"]
