"""A selection imports what it may select, and the order names files that are there."""

import pytest

from tests.order import FIRST_PATHS, ROOT, may_match, turn


@pytest.mark.parametrize(
    ("word", "path", "wanted"),
    [
        ("launcher", "launcher/test_up.py", True),
        ("launcher", "test_docs.py", True),
        ("launcher", "e2e/test_ray.py", False),
        ("ray", "e2e/test_ray.py", True),
        ("pricing", "gateway/workers/test_routes_by_cost.py", True),
        ("not launcher", "kernels/test_gate.py", True),
        ("interpreter", "kernels/test_gate.py", True),
    ],
)
def test_a_room_selects_files_that_name_it_and_other_words_any(word: str, path: str, wanted: bool) -> None:
    assert may_match(word, ROOT / path) is wanted


def test_every_path_that_begins_first_is_there_and_begins_first() -> None:
    assert [turn(ROOT / path) for path in FIRST_PATHS] == [*range(len(FIRST_PATHS))]
    assert all((ROOT / path).exists() for path in FIRST_PATHS) and turn(ROOT / "engine") == len(FIRST_PATHS)
