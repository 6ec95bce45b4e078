"""Records of workers of another version are read as far as they go."""

import msgspec

from infra.redis.records import Memory, WorkerRecord
from infra.redis.worker_load import WorkerLoad

RECORD = WorkerRecord(
    "epoch",
    "decode",
    "tcp://127.0.0.1:1",
    "tcp://127.0.0.1:2",
    "demo",
    "print",
    "content",
    16,
    1024,
    "cpu",
    "fp32",
    1.0,
)


def test_a_record_without_memory_says_nothing_about_it() -> None:
    old = msgspec.to_builtins(RECORD)
    del old["memory"]
    assert msgspec.json.decode(msgspec.json.encode(old), type=WorkerRecord) == RECORD
    assert RECORD.memory == Memory() and RECORD.load == WorkerLoad()


def test_memory_comes_back_as_it_was_written() -> None:
    record = msgspec.structs.replace(RECORD, memory=Memory(1, 2, 3, 4, 5, 6, 7.5, 8.5))
    assert msgspec.json.decode(msgspec.json.encode(record), type=WorkerRecord) == record
