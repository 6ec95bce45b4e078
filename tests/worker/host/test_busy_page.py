"""Workers of one host divide its cores by who is busy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.full_disk import room
from tests.waiting import DEADLINE_S
from worker.host.busy_page import FLAGS_OFFSET, BusyPage, mapped


def test_a_lone_busy_worker_has_all_cores_and_two_share_them(tmp_path: Path) -> None:
    path = str(tmp_path / "page")
    first: list[int] = []
    second: list[int] = []
    one = BusyPage(path, 8, first.append)
    two = BusyPage(path, 8, second.append)
    one.enter(64)
    two.enter(64)
    one.enter(64)
    two.leave()
    one.enter(64)
    one.enter(64)  # unchanged: not set again
    assert first == [8, 4, 8]
    assert second == [4]
    one.close()
    two.close()


def test_cores_that_are_left_over_go_to_one_each(tmp_path: Path) -> None:
    seen: list[list[int]] = [[], [], []]
    pages = [BusyPage(str(tmp_path / "page"), 8, threads.append) for threads in seen]
    for page in pages * 2:
        page.enter(64)
    assert [threads[-1] for threads in seen] == [3, 3, 2]
    pages[0].leave()
    for page in pages[1:]:
        page.divide()
    assert [threads[-1] for threads in seen[1:]] == [4, 4]
    for page in pages:
        page.close()


def test_a_step_under_way_gives_cores_back_and_takes_them_again(tmp_path: Path) -> None:
    """Looks between the layers of one worker's long step, beside short ones of another."""
    path = str(tmp_path / "page")
    long: list[int] = []
    one, two = BusyPage(path, 2, long.append), BusyPage(path, 2, lambda threads: None)
    one.enter(64)
    one.divide()
    two.enter(64)
    one.divide()
    one.divide()  # unchanged: not set again
    two.leave()
    one.divide()
    assert long == [2, 1, 2]
    one.close()
    two.close()


def test_a_worker_without_a_page_has_all_cores() -> None:
    threads: list[int] = []
    page = BusyPage("", 2, threads.append)
    page.enter(64)
    assert threads == [2]
    page.close()


def test_a_small_step_takes_fewer_threads_than_there_are() -> None:
    threads: list[int] = []
    page = BusyPage("", 8, threads.append)
    page.enter(1)
    page.enter(3)
    assert threads == [1, 3]
    page.close()


def test_there_is_always_one_thread(tmp_path: Path) -> None:
    pages = []
    threads: list[int] = []
    for _ in range(3):
        page = BusyPage(str(tmp_path / "page"), 2, threads.append)
        page.enter(64)
        pages.append(page)
    assert threads[-1] == 1
    for page in pages:
        page.close()


def test_the_slot_of_a_process_that_died_busy_is_freed(tmp_path: Path) -> None:
    path = tmp_path / "page"
    begin = "import os; from worker.host.busy_page import BusyPage"
    code = f"{begin}; BusyPage({str(path)!r}, 2, print).enter(64); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)
    assert any(path.read_bytes()[FLAGS_OFFSET:])
    threads: list[int] = []
    page = BusyPage(str(path), 2, threads.append)
    page.enter(64)
    assert threads == [2]
    page.close()


def test_a_page_that_finds_no_room_is_this_workers_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To write a page that the disk has no room for would kill the process."""
    threads: list[int] = []
    with room(0):
        page = BusyPage(str(tmp_path / "page"), 2, threads.append)
        page.enter(64)
    assert threads == [2] and "the page of busy workers cannot be made (File too large)" in caplog.text
    page.close()


def test_the_page_has_its_room_on_the_disk_from_its_beginning(tmp_path: Path) -> None:
    with (tmp_path / "page").open("w+b") as file:
        mapped(file.fileno()).close()
        assert os.fstat(file.fileno()).st_blocks > 0
