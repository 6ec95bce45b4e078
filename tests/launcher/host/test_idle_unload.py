"""When an idle model is unloaded, and when it is loaded again."""

from pathlib import Path

from infra.process.status import StatusFile
from launcher.host.idle_unload import SETTLE_S, IdleUnload, IdleWatch, ModelState

MINUTES, LIMIT_S = 2.0, 120.0
LATE_S = SETTLE_S + 0.1


def test_a_model_is_unloaded_after_its_idle_minutes_and_loaded_for_a_request() -> None:
    idle = IdleUnload(MINUTES, 0.0)
    assert idle.look([], True, LIMIT_S - 1) is ModelState.LOADED, "no request yet: idle since the start"
    assert idle.look([50.0, 3.0], True, LIMIT_S) is ModelState.LOADED, "one gateway was busy 3 s ago"
    assert idle.look([], True, LIMIT_S + 100) is ModelState.LOADED, "that gateway has died, its request counts"
    assert idle.look([LIMIT_S], True, 300.0) is ModelState.SETTLING
    assert idle.look([LIMIT_S + 1], True, 301.0) is ModelState.SETTLING
    assert idle.look([LIMIT_S + 1], True, 300.0 + LATE_S) is ModelState.UNLOADED
    assert idle.look([6 * LIMIT_S], False, 800.0) is ModelState.UNLOADED
    assert idle.look([6 * LIMIT_S, 0.0], False, 801.0) is ModelState.LOADING
    assert idle.look([0.0], False, 900.0) is ModelState.LOADING
    assert idle.look([50.0], True, 950.0) is ModelState.LOADED
    assert idle.look([LIMIT_S + 50], True, 950.0 + LIMIT_S - 1) is ModelState.LOADED, "a loading counts as use"
    assert idle.look([LIMIT_S + 51], True, 950.0 + LIMIT_S) is ModelState.SETTLING


def test_a_request_that_comes_at_the_last_moment_keeps_the_model() -> None:
    idle = IdleUnload(MINUTES, 0.0)
    assert idle.look([], True, LIMIT_S) is ModelState.SETTLING
    assert idle.look([0.5], True, LIMIT_S + 1) is ModelState.LOADED


def test_workers_that_are_not_ready_are_not_unloaded() -> None:
    idle = IdleUnload(MINUTES, 0.0)
    assert idle.look([], False, 10 * LIMIT_S) is ModelState.LOADED


def test_the_file_is_there_until_the_workers_are_ready_again(tmp_path: Path) -> None:
    file, status = tmp_path / "unloaded", tmp_path / "gateway.status"
    StatusFile(str(status)).ready("")
    watch = IdleWatch(MINUTES, file, ["decode-0"], [status, tmp_path / "none"], 0.0)
    assert watch.look(True, 1.0) is ModelState.LOADED and not file.exists()
    assert watch.look(True, LIMIT_S) is ModelState.SETTLING and file.read_text() == "unloaded"
    assert watch.look(True, LIMIT_S + LATE_S) is ModelState.UNLOADED and file.read_text() == "unloaded"
    status.write_text('{"stage": "ready", "idle_s": 0.0}')
    assert watch.look(False, LIMIT_S + 20) is ModelState.LOADING and file.read_text() == "loading again"
    assert watch.look(True, LIMIT_S + 30) is ModelState.LOADED and not file.exists()


def test_on_a_full_disk_the_model_stays_loaded(tmp_path: Path) -> None:
    watch = IdleWatch(MINUTES, tmp_path / "no-directory" / "unloaded", ["decode-0"], [], 0.0)
    assert [watch.look(True, LIMIT_S + LATE_S * number) for number in range(3)] == [ModelState.LOADED] * 3
