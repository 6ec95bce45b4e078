"""An idle connection makes room for the next; a busy one never does."""

from gateway.web.connections import Connections


class Line:
    def __init__(self) -> None:
        self.closed = False

    def close_idle(self) -> None:
        self.closed = True


def opened(connections: Connections[Line], count: int) -> list[Line]:
    lines = [Line() for _ in range(count)]
    assert all(connections.opened(line) for line in lines)
    return lines


def test_the_oldest_that_has_asked_for_nothing_makes_room() -> None:
    connections: Connections[Line] = Connections(3)
    lines = opened(connections, 4)
    assert [line.closed for line in lines] == [True, False, False, False] and len(connections) == 3


def test_what_has_asked_before_is_kept_longer() -> None:
    connections: Connections[Line] = Connections(3)
    kept, later, fresh = opened(connections, 3)
    for line in (kept, later):
        connections.busy(line)
        connections.answered(line)
    opened(connections, 1)
    assert [line.closed for line in (kept, later, fresh)] == [False, False, True]


def test_the_longest_idle_goes_first() -> None:
    connections: Connections[Line] = Connections(2)
    first, second = opened(connections, 2)
    for line in (first, second):
        connections.busy(line)
    for line in (second, first):
        connections.answered(line)
    connections.opened(Line())
    assert second.closed and not first.closed


def test_where_all_are_busy_there_is_no_room() -> None:
    connections: Connections[Line] = Connections(2)
    lines = opened(connections, 2)
    for line in lines:
        connections.busy(line)
    refused = Line()
    assert not connections.opened(refused) and len(connections) == 2
    assert not any(line.closed for line in lines)
    connections.busy(refused)  # what it says meanwhile changes nothing
    connections.lost(refused)
    assert len(connections) == 2
    connections.lost(lines[0])
    assert connections.opened(Line())
