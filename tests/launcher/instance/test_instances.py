"""Running instances are known to other commands of their user, and only those."""

import fcntl
import json
from pathlib import Path

import pytest

from launcher.instance.instances import Instance, Record, ServiceState, recorded, running


def quiet(sentence: str) -> None:
    raise AssertionError(sentence)


def test_records_name_the_newest_first_and_forget_the_unreadable(tmp_path: Path) -> None:
    with (
        Record(Instance("http://a", 1, "m", 1.0, "log"), quiet),
        Record(Instance("http://b", 2, "m", 2.0, "log"), quiet),
    ):
        (tmp_path / "state" / "baton" / "instances" / "3.json").write_text("{}")
        assert [instance.url for instance in running()] == ["http://b", "http://a"]
    assert recorded() == []


def test_an_instance_that_starts_or_stops_is_recorded_but_does_not_run() -> None:
    with Record(Instance("http://a", 1, "m", 1.0, "log", phase="starting"), quiet) as record:
        assert running() == []
        services = (ServiceState("decode-0", "loading weights", 12),)
        record.change(services=services)
        assert [(each.phase, each.services) for each in recorded()] == [("starting", services)]
        record.change(phase="running")
        assert [each.services for each in running()] == [services]
        record.change(phase="stopping")
        assert running() == [] and len(recorded()) == 1


def test_a_record_that_changes_while_it_is_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has the old file open, without its lock, when the new one already has its name."""
    with Record(Instance("http://a", 1, "m", 1.0, "log", phase="starting"), quiet) as record:
        lock = fcntl.flock

        def changed_before(descriptor: int, how: int) -> None:
            if how & fcntl.LOCK_SH:
                record.change(phase="running")
            lock(descriptor, how)

        monkeypatch.setattr("launcher.instance.held_file.fcntl.flock", changed_before)
        assert [each.phase for each in recorded()] == ["running"]
        assert [each.phase for each in recorded()] == ["running"]


def test_the_record_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    with Record(Instance("http://a", 1, "m", 1.0, "log"), quiet):
        path = tmp_path / "state" / "baton" / "instances" / "1.json"
        old = {"url": "http://a", "pid": 1, "model": "m", "started": 1.0, "log": "log"}
        path.write_text(json.dumps(old))
        assert [instance.url for instance in running()] == ["http://a"]


def test_an_instance_without_a_record_goes_on(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    said: list[str] = []
    with Record(Instance("http://a", 1, "m", 1.0, "log"), said.append) as record:
        record.change(phase="stopping")
    assert len(said) == 2 and "./baton status and ./baton chat go without it" in said[0]
