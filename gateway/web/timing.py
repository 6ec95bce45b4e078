"""Writes the `Server-Timing` header: the times of a request that are known when the headers are sent."""

import time
from collections.abc import Mapping, Sequence

from gateway.requests.request import Request


def server_timing(requests: Sequence[Request]) -> Mapping[str, str]:
    """Returns the header: queue, prefill, first token, and total, each in ms.

    With several prompts or choices these are the longest times. Browsers show them beside their own.
    """
    now = time.monotonic()
    samples = [sample for request in requests for sample in request.samples]
    streams = [stream for request in requests for stream in request.streams]
    times = {
        "queue": max(sample.stages.queue_ms for sample in samples),
        "prefill": max(sample.stages.prefill_ms for sample in samples),
        "ttft": min(stream.timings(now).ttft_ms for stream in streams),
        "total": 1000 * (now - requests[0].received),
    }
    return {"server-timing": ", ".join(f"{name};dur={value:.3f}" for name, value in times.items())}
