"""Writes the `Server-Timing` header: what is known of a request's times when the headers leave."""

import time
from collections.abc import Mapping, Sequence

from gateway.requests.request import Request


def server_timing(requests: Sequence[Request]) -> Mapping[str, str]:
    """Returns the header: waiting, the prompt's computation, time to the first token, and all of it, each in ms.

    Of several prompts or choices it tells the longest times. Browsers show them beside their own.
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
