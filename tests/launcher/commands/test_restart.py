"""`baton restart` ends one service of an instance, and returns when its next life is ready."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from launcher.__main__ import main
from launcher.instance.instances import Instance, Record
from tests.launcher.host.supervised import IGNORES_SIGTERM, Bench


@pytest.fixture
def instance(bench: Bench) -> Iterator[Record]:
    """The record of an instance whose supervisor is this process."""
    with Record(Instance("http://127.0.0.1:1", os.getpid(), "m", 0.0, "log"), pytest.fail) as record:
        bench.supervise(0.0, lambda services: record.change(services=services))
        yield record


def test_a_service_is_restarted_and_another_is_not(bench: Bench, instance: Record) -> None:
    bench.supervisor.start([bench.service("decode-0"), bench.service("redis")])
    statuses: list[int] = []

    def command() -> None:
        try:
            statuses.append(main(["restart", "decode-0"]))
        finally:
            bench.signals.ask_to_stop()

    bench.watch_while(command)
    assert statuses == [0]
    assert [service.restarts for service in instance.instance.services] == [1, 0]
    assert bench.ends() == ["decode-0"]


def test_a_service_that_does_not_end_is_killed(bench: Bench, instance: Record) -> None:
    bench.supervisor.start([replace(bench.service("decode-0", IGNORES_SIGTERM), grace=0.1)])
    statuses: list[int] = []

    def command() -> None:
        try:
            statuses.append(main(["restart", "decode-0", "--kill-seconds=0.1"]))
        finally:
            bench.signals.ask_to_stop()

    bench.watch_while(command)
    assert statuses == [0] and "decode-0 died (killed by SIGKILL" in bench.shown.getvalue()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "SERVICE: is missing: ./baton restart SERVICE"),
        (["decode-1"], "SERVICE: 'decode-1': http://127.0.0.1:1 has none of this name; its services are redis"),
        (["redis"], "SERVICE: 'redis': has the jobs of running requests"),
        (["redis", "--url", "http://127.0.0.1:2"], "--url: 'http://127.0.0.1:2': names one of the running instances"),
    ],
)
def test_what_cannot_be_restarted_is_refused(
    words: list[str],
    sentence: str,
    bench: Bench,
    instance: Record,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench.supervisor.start([bench.service("redis")])
    assert main(["restart", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


def test_without_an_instance_there_is_nothing_to_restart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restart", "decode-0"]) == 2
    assert capsys.readouterr().err.startswith("error: no instance of this user runs on this host")
