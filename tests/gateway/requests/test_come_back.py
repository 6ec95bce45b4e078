"""Shows that who is refused and comes back when told is let in at the second retry at the latest, as clients try."""

import heapq
from math import inf

import pytest

from gateway.errors import APIError
from gateway.requests.gate import Gate, WaitingRequest

CLIENTS, ROOM, LINE = 200, 20, 10
CLIENT_RETRIES = 2  # that official clients make by default
PACES = {"fast": [0.15] * 1000, "even": [0.45] * 1000, "slow": [3.0] * 1000, "first long": [2.0] + [0.3] * 1000}


def crowd(pauses: list[float]) -> list[int]:
    """Plays a crowd that comes within a second; all that have begun end together, after each of the `pauses`.

    Returns how often each client was refused.
    """
    gate, refused, running, now = Gate(LINE), [0] * CLIENTS, 0, 0.0
    line: list[WaitingRequest] = []
    coming = [(0.005 * number, number) for number in range(CLIENTS)]
    ends = iter(pauses)
    end = next(ends)
    while coming or line:
        if coming and coming[0][0] < end:
            now, number = heapq.heappop(coming)
            if running < ROOM and not line:
                running += 1
                continue
            try:
                line.append(gate.enter("", 1.0, 1, inf, now))
            except APIError as error:
                refused[number] += 1
                assert error.retry_after is not None
                heapq.heappush(coming, (now + error.retry_after, number))
        else:
            now, end, running = end, end + next(ends), min(ROOM, len(line))
            for waiting in line[:ROOM]:
                gate.goes(waiting, now)
                gate.leave(waiting)
            del line[:ROOM]
    return refused


@pytest.mark.parametrize("pauses", PACES.values(), ids=list(PACES))
def test_two_retries_are_enough_for_everybody(pauses: list[float]) -> None:
    refused = crowd(pauses)
    assert sum(refused) > 0
    assert max(refused) <= CLIENT_RETRIES
