"""Shows what overload costs: many samples come at once to workers whose pools hold a few of them.

    python -m benchmarks.stress.overload [--requests 80] [--samples 8] [--kv-memory 4]

Nobody fails here, so whoever has no room yet should wait: an attempt that is tried again computes its prompt again. The
last lines say how many were, by reason, and why handoffs were given up.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from benchmarks.children import end_on_termination
from benchmarks.split_system import split_system
from benchmarks.stress.crowd import Crowd, lines, send
from core.config import EngineOptions
from core.errors import BatonError
from launcher.options import DEMO_MODEL


def main() -> int:
    """Prints what became of the requests, and returns the exit status: 2 for what cannot work."""
    parser = argparse.ArgumentParser(prog="benchmarks.stress.overload", description=__doc__)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--samples", type=int, default=8, help="of each request")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--answer", type=int, default=256, help="tokens of each sample")
    parser.add_argument("--kv-memory", type=int, default=4, help="MiB of KV blocks of each worker")
    options = parser.parse_args()
    end_on_termination()
    engine = EngineOptions(dtype="fp32", kv_memory=options.kv_memory << 20)
    crowd = Crowd(options.requests, options.prompt, options.answer, options.samples)
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            split_system(DEMO_MODEL, Path(directory), engine) as system,
        ):
            came = asyncio.run(send(system, crowd))
            records = system.records()
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(crowd, came)))
    for role, record in sorted(records.items()):
        ended = ", ".join(f"{count} {reason}" for reason, count in sorted(record.load.handoff.given_up.items()))
        print(f"{role}: {record.load.handoffs} handoffs passed; given up: {ended or 'none'}")
    prefill = records["prefill"].load
    print(f"prompt tokens that the prefill worker computed: {prefill.prompt_tokens}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
