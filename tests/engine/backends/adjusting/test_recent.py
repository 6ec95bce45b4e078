"""Who was not used for longest is forgotten, and never those of the step."""

from engine.backends.adjusting.recent import Recent


def test_the_oldest_are_forgotten_beyond_the_room() -> None:
    recent: Recent[str] = Recent(allowance=2)
    for sequence in range(6):
        recent.keep(sequence, f"of {sequence}")
    assert recent.use(1) == "of 1" and recent.use(9) is None
    recent.forget(used=2)
    assert len(recent) == 4
    assert [recent.use(sequence) for sequence in (0, 2, 3, 4, 5, 1)] == [None, None, "of 3", "of 4", "of 5", "of 1"]
    recent.forget(used=0)
    assert [recent.use(sequence) for sequence in (3, 4, 5, 1)] == [None, None, "of 5", "of 1"]
