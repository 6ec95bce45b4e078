"""A link's window: what may leave by the peer's credit, whatever of it comes late, twice or wrong."""

from kvtransfer.protocol.flow import SendWindow


def test_nothing_leaves_before_the_peer_has_given_credit() -> None:
    window = SendWindow()
    assert not window.open_for(1)
    window.credit(0, 10)
    assert window.open_for(1)


def test_more_than_the_window_goes_alone() -> None:
    window = SendWindow()
    window.credit(0, 10)
    assert window.open_for(1000), "nothing else is under way"
    window.send(8)
    assert window.open_for(2) and not window.open_for(3)


def test_a_late_credit_takes_nothing_back_and_a_wrong_one_covers_nothing_unsent() -> None:
    window = SendWindow()
    window.credit(0, 10)
    window.send(6)
    window.credit(6, 16)
    window.credit(0, 10)
    assert (window.seen, window.limit) == (6, 16)
    window.credit(99, 16)
    assert window.seen == 6
