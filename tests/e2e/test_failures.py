"""Whatever stops, dies, is emptied or leaves costs no request: sequences go on elsewhere, with the same tokens."""

import signal
from pathlib import Path

import pytest

from infra.process.status import read_status
from infra.redis.records import Role
from infra.redis.store import WAITING_STAGE
from tests.e2e.harness.deaths import death_midway
from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.streams import Streams
from tests.e2e.harness.system import System
from tests.reference import Golden
from tests.waiting import wait_until

FP32 = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56")
LONG = ("--link-prompt", "100")  # longer prompts come by the connection of their gateway, the others by Redis


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Golden]]:
    """A random model, and what it answers to many prompts."""
    model = build_served_model(tmp_path_factory.mktemp("model"), "llama")
    return model, references(model, [20, 300, 90, 210, 40, 500, 64, 130] * 3, new_tokens=100)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_killed_worker_loses_no_request(tmp_path: Path, served: tuple[Path, list[Golden]], role: Role) -> None:
    model, runs = served
    worker = (*FP32[:-1], "16")  # so that prompts are computed in many steps
    with System(tmp_path, model, prefill=2, decode=2, worker=worker, gateway=LONG) as system:
        with death_midway(system, role):
            answers = complete_all(system.gateway_url, runs)
        assert answers == [run.tokens for run in runs]
        assert system.retried() > 0
        wait_until(lambda: len(system.records()) == 3, "the dead worker's record to expire")
        system.wait_until_idle()
        assert all(record.outcome == "finished" for record in system.finished())


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_prefill_workers_answer_while_no_decode_worker_is_there(
    tmp_path: Path, served: tuple[Path, list[Golden]], number: signal.Signals
) -> None:
    """Streams that had begun go on behind their last token, and new ones are answered; a decode worker splits again."""
    model, runs = served
    slow = (*FP32, "--cpu-backend", "torch")
    with System(tmp_path, model, prefill=1, decode=1, worker=slow, gateway=LONG) as system:
        (prefill,) = [record.epoch for record in system.records() if record.role == "prefill"]
        streams = Streams(system.gateway_url, runs[:18])
        streams.begin_to_flow(6)
        system.killed.add(system.workers["decode-0"].pid)
        system.workers["decode-0"].send_signal(number)
        assert streams.flowing() > 0
        streams.begin(6)
        assert streams.finish() == 12
        assert {each.decode_worker for each in system.finished()[-6:]} == {prefill}
        system.kill("decode-0")
        system.start_worker("decode-0")
        system.address("decode-0")
        wait_until(lambda: system.usable() == 2, "the gateway to know the new decode worker")
        streams.begin(6)
        assert streams.finish() == 18
        system.wait_until_idle()
        last = system.finished()[-6:]
        assert {system.name_of(each.decode_worker) for each in last} == {"decode-0"}
        assert all(each.prefill_worker and each.outcome == "finished" for each in last)


def test_disturbances_of_every_service_change_no_token(tmp_path: Path, served: tuple[Path, list[Golden]]) -> None:
    """One after the other, each in the middle of streams; operators are PyTorch's, so that streams last long enough."""
    model, runs = served
    slow = (*FP32, "--cpu-backend", "torch")
    with System(tmp_path, model, prefill=2, decode=3, worker=slow, gateway=LONG) as system:
        streams = Streams(system.gateway_url, (runs + runs)[:24])
        disturbed: list[int] = []  # streams that had not ended, at each disturbance
        streams.begin_to_flow(6)
        stopped = [system.workers["prefill-1"], system.workers["decode-1"]]
        for worker in stopped:
            worker.send_signal(signal.SIGSTOP)
        disturbed.append(streams.flowing())
        streams.begin(3)
        streams.finish()  # on the others
        for worker in stopped:
            worker.send_signal(signal.SIGCONT)  # what they still say is of attempts that are over

        streams.begin_to_flow(3)
        system.gateway.send_signal(signal.SIGSTOP)
        disturbed.append(streams.flowing())
        system.wait_until_idle()  # the workers have made all tokens
        system.gateway.send_signal(signal.SIGCONT)

        streams.begin_to_flow(3)
        system.redis.send_signal(signal.SIGSTOP)
        disturbed.append(streams.flowing())
        streams.finish()
        system.redis.send_signal(signal.SIGCONT)

        streams.begin_to_flow(2)
        system.store.flushall()
        disturbed.append(streams.flowing())
        streams.begin_to_flow(2)
        system.killed.add(system.redis.pid)
        system.redis.kill()
        system.redis.wait()
        system.start_worker("decode-3")
        waiting = system.directory / "decode-3.status"
        wait_until(
            lambda: (status := read_status(waiting)) and status.stage == WAITING_STAGE, "decode-3 to wait for Redis"
        )
        disturbed.append(streams.flowing())
        system.start_redis()  # another one, which is empty
        system.address("decode-3")
        streams.begin_to_flow(3)
        system.workers.pop("decode-2").send_signal(signal.SIGTERM)
        disturbed.append(streams.flowing())
        streams.begin(2)
        assert streams.finish() == 24
        system.wait_until_idle()
        assert sum(map(bool, disturbed)) >= 4, disturbed
