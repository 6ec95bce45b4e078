"""Finds workers whose KV no worker of the other role can use, and names the difference."""

from collections.abc import Sequence

from infra.redis.records import WorkerRecord


def misfits(records: Sequence[WorkerRecord]) -> dict[str, str]:
    """Returns, by epoch, a sentence about each worker that gets no requests because it fits no other worker.

    If no two workers fit, decode workers serve whole requests, and prefill workers serve none.
    """
    prefills = [record for record in records if record.role == "prefill" and not record.draining]
    decodes = [record for record in records if record.role == "decode" and not record.draining]
    fitting = {record.content for record in prefills} & {record.content for record in decodes}
    idle = [(record, decodes[0]) for record in prefills if decodes and record.content not in fitting]
    idle += [(record, prefills[0]) for record in decodes if fitting and record.content not in fitting]
    return {record.epoch: _sentence(record, other) for record, other in idle}


def _sentence(record: WorkerRecord, other: WorkerRecord) -> str:
    told = "their weights or their layouts of KV differ"
    if record.quantization != other.quantization:
        told = f"--quantization {record.quantization} does not go with {other.quantization}"
    between = f"no KV passes between {record.role} worker {record.epoch} and {other.role} worker {other.epoch}"
    return f"{between}: {told}; the first takes no requests"
