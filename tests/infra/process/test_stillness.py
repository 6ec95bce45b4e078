"""Stillness counts what somebody has seen, not what passed while nobody looked."""

from infra.process.stillness import MAX_LOOK_S, Stillness


def test_the_same_mark_adds_up_and_another_begins_anew() -> None:
    still = Stillness()
    assert [still.look(mark, at) for at, mark in enumerate(["a", "a", "a", "b", "b"])] == [0, 1, 2, 0, 1]


def test_what_need_not_move_is_never_still() -> None:
    still = Stillness()
    assert [still.look(mark, at) for at, mark in enumerate(["a", None, None, "a", "a"])] == [0, 0, 0, 0, 1]


def test_a_pause_of_the_observer_proves_little() -> None:
    still = Stillness()
    still.look("a", 0.0)
    assert still.look("a", 3600.0) == MAX_LOOK_S


def test_time_in_which_the_mark_could_not_move_is_not_stillness() -> None:
    still = Stillness()
    still.look("a", 0.0)
    assert still.look("a", 1.0, unable=0.75) == 0.25
    assert still.look("a", 2.0, unable=5.0) == 0.25, "a wait may seem longer than the time between two looks"
