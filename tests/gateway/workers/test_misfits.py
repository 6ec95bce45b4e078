"""Workers that fit nobody are named, with what tells them apart."""

from msgspec import structs

from contracts.kinds import Quantization
from gateway.workers.misfits import misfits
from infra.redis.records import Role, WorkerRecord
from tests.gateway.workers.test_router import worker


def record(epoch: str, role: Role, quantization: Quantization = "none", content: str = "") -> WorkerRecord:
    return structs.replace(worker(epoch, role, fingerprint=content or quantization).record, quantization=quantization)


def test_workers_that_fit_are_not_named() -> None:
    assert misfits([record("p", "prefill"), record("d", "decode")]) == {}
    assert misfits([record("p", "prefill", "int4")]) == {}, "its decode worker is still to come"
    assert misfits([record("d", "decode", "int4")]) == {}


def test_a_prefill_worker_of_other_weights_is_named_with_both() -> None:
    found = misfits([record("p", "prefill", "int4"), record("d", "decode")])
    assert found == {
        "p": "no KV passes between prefill worker p and decode worker d: --quantization int4 does not go with none; "
        "the first takes no requests"
    }


def test_a_decode_worker_that_is_left_out_is_named() -> None:
    found = misfits([record("p", "prefill", "int4"), record("d1", "decode", "int4"), record("d2", "decode")])
    assert list(found) == ["d2"] and "--quantization none does not go with int4" in found["d2"]


def test_other_differences_are_named_as_such() -> None:
    found = misfits([record("p", "prefill", content="a"), record("d", "decode", content="b")])
    assert "their weights or their layouts of KV differ" in found["p"]


def test_who_is_leaving_is_not_compared() -> None:
    leaving = structs.replace(record("d", "decode"), draining=True)
    assert misfits([record("p", "prefill", "int4"), leaving]) == {}
