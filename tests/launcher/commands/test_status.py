"""`baton status` shows the instances of this user on this host; `test_up.py` shows it an instance that serves."""

import re
from typing import Any

import pytest

from infra.redis.records import WorkerRecord
from infra.redis.worker_load import WorkerLoad
from launcher.__main__ import main
from launcher.commands.status import NO_INSTANCE, NO_INSTANCE_HINT, NOT_READY, duration, instance_text
from launcher.instance.instances import Instance, Record, ServiceState
from launcher.ray_process import asks_for_ray, needs_ray

INSTANCE = Instance(
    "http://127.0.0.1:1",
    4711,
    "/models/mine",
    1_700_000_000.0,
    "/logs/mine.log",
    dashboard="http://127.0.0.1:2",
    services=(
        ServiceState("redis", "ready", 4712),
        ServiceState("prefill-0", "ready", 4713, "tcp://127.0.0.1:3", restarts=2),
        ServiceState("decode-0", "died, and is started again"),
    ),
)


def test_where_nothing_runs_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == NO_INSTANCE
    assert capsys.readouterr() == ("", f"error: {NO_INSTANCE_HINT}\n")


def test_an_instance_whose_endpoint_does_not_answer_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    with Record(INSTANCE, pytest.fail):
        assert main(["status"]) == NOT_READY
    shown = capsys.readouterr().out
    assert shown.startswith("not ready, since 2023-11-1")
    assert shown.splitlines()[1:] == [
        "  endpoint   http://127.0.0.1:1/v1",
        "  dashboard  http://127.0.0.1:2",
        "  model      /models/mine",
        "  log        /logs/mine.log",
        "  process    4711",
        "",
        "SERVICE    STAGE                       PROCESS  RESTARTS  DEVICE  RUNNING  WAITING  KV",
        "redis      ready                       4712     0         -       -        -        -",
        "prefill-0  ready                       4713     2         -       -        -        -",
        "decode-0   died, and is started again  -        0         -       -        -        -",
    ]


def test_a_worker_shows_its_device_and_load() -> None:
    load = WorkerLoad(running=3, waiting=1, blocks_total=200, blocks_used=50)
    record = WorkerRecord("e", "prefill", "tcp://127.0.0.1:3", "", "m", "", "", 16, 2048, "cpu", "bf16", 0.0, load=load)
    shown = instance_text(INSTANCE, True, 0.0, {record.address: record}).splitlines()
    assert shown[-2].split() == ["prefill-0", "ready", "4713", "2", "cpu", "3", "1", "25%"]


@pytest.mark.parametrize(
    ("phase", "ready", "word"),
    [("starting", False, "starting"), ("running", True, "ready"), ("stopping", False, "stopping")],
)
def test_each_phase_is_named(phase: Any, ready: bool, word: str) -> None:
    instance = Instance("u", 1, "m", 1000.0, "l", phase=phase)
    assert re.match(rf"{word}, since .* \(5 min\)\n", instance_text(instance, ready, 1300.0))


def test_durations() -> None:
    written = [duration(seconds) for seconds in (-1, 0, 59.9, 60, 3599, 3600, 12_000, 86_400, 187_000)]
    assert written == ["0 s", "0 s", "59 s", "1 min", "59 min", "1 h 0 min", "3 h 20 min", "1 d 0 h", "2 d 3 h"]


@pytest.mark.parametrize(
    ("words", "ray"),
    [
        ([], False),
        (["--on", "host"], False),
        (["--on", "ray"], True),
        (["--on=ray"], True),
        (["--ray-address", "10.0.0.1:6379"], True),
        (["--ray-address=auto"], True),
        (["--ray-namespace", "mine"], True),
    ],
)
def test_ray_is_asked_where_the_options_mean_it(words: list[str], ray: bool) -> None:
    assert asks_for_ray(words) == needs_ray(["status", *words]) == needs_ray(["down", *words]) == ray


def test_a_bad_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--on", "moon"]) == 2
    assert capsys.readouterr().err.startswith("error: --on: 'moon': ")
