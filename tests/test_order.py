"""A selection imports what it may select, and files are mixed."""

import pytest

from tests.order import LONGEST_FILES, ROOT, SYSTEM_ROOMS, may_match, mixed


@pytest.mark.parametrize(
    ("word", "path", "wanted"),
    [
        ("launcher", "launcher/commands/test_up.py", True),
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


def test_files_that_wait_and_files_that_compute_are_mixed() -> None:
    paths = ["e2e/test_adjusted.py", "e2e/test_cancel.py", "e2e/test_ray.py", *(f"engine/{name}" for name in "abcdef")]
    found = [str(path.relative_to(ROOT)) for path in mixed(ROOT / path for path in paths)]
    assert found[0] == "e2e/test_ray.py" and sorted(found) == sorted(paths)
    assert [at for at, path in enumerate(found) if path.startswith("e2e")] == [0, 3, 6]


def test_the_rooms_and_the_longest_files_are_there() -> None:
    assert all((ROOT / path).exists() for path in (*SYSTEM_ROOMS, *LONGEST_FILES))
