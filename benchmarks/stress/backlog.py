"""Shows what a backlog of jobs costs: requests come at once to workers that take few jobs ahead of their steps.

    python -m benchmarks.stress.backlog [--requests 150] [--jobs-ahead 4]

Most jobs wait on their worker's stream for far longer than any step takes. A worker that lives and has not begun a job
has not failed: as many entries as requests are right, with no attempt tried again and every answer 200.
"""

import sys

from benchmarks.stress.crowd import run_crowd


def main() -> int:
    return run_crowd(
        "backlog",
        __doc__,
        150,
        lambda parser: parser.add_argument(
            "--jobs-ahead", type=int, default=4, help="jobs that a worker takes before it can begin them"
        ),
        worker=lambda given: ["--jobs-ahead", str(given.jobs_ahead)],
    )


if __name__ == "__main__":
    sys.exit(main())
