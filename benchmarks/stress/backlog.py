"""Shows what a backlog of jobs costs: requests come at once to workers that take few jobs ahead of their steps.

    python -m benchmarks.stress.backlog [--requests 150] [--jobs-ahead 4]

Most jobs wait on their worker's stream for far longer than any step takes. A worker that lives and has not begun a job
has not failed: as many entries as requests are right, with no attempt tried again and every answer 200.
"""

import sys

from benchmarks.processes.children import exit_status
from benchmarks.stress.crowd import Crowd, crowd_options, crowded, lines
from launcher.stages import StageDisplay


def main() -> int:
    parser = crowd_options("backlog", __doc__, requests=150)
    parser.add_argument("--jobs-ahead", type=int, default=4, help="jobs that a worker takes before it can begin them")
    options = parser.parse_args()
    crowd = Crowd(options.requests, options.prompt, options.answer)

    def run(stages: StageDisplay) -> None:
        with crowded(crowd, options.kv_memory, ["--jobs-ahead", str(options.jobs_ahead)]) as (_, came):
            print("\n".join(lines(crowd, came)))

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
