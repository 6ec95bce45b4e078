"""Shows what a backlog of jobs costs: requests come at once to workers that take few jobs ahead of their steps.

    python -m benchmarks.stress.backlog [--requests 150] [--jobs-ahead 4]

Most jobs wait on their worker's stream for far longer than any step takes. A worker that lives and has not begun a job
has not failed: as many entries as requests are right, with no attempt tried again and every answer 200.
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
    parser = argparse.ArgumentParser(prog="benchmarks.stress.backlog", description=__doc__)
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--answer", type=int, default=256, help="tokens")
    parser.add_argument("--jobs-ahead", type=int, default=4, help="jobs that a worker takes before it can begin them")
    parser.add_argument("--kv-memory", type=int, default=4, help="MiB of KV blocks of each worker")
    options = parser.parse_args()
    end_on_termination()
    engine = EngineOptions(dtype="fp32", kv_memory=options.kv_memory << 20)
    crowd = Crowd(options.requests, options.prompt, options.answer)
    ahead = ["--jobs-ahead", str(options.jobs_ahead)]
    try:
        with (
            tempfile.TemporaryDirectory() as directory,
            split_system(DEMO_MODEL, Path(directory), engine, worker=ahead) as system,
        ):
            came = asyncio.run(send(system, crowd))
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(crowd, came)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
