"""Shows what overload costs: many samples come at once to workers whose pools hold a few of them.

    python -m benchmarks.stress.overload [--requests 80] [--samples 8] [--kv-memory 4]

Nobody fails here, so whoever has no room yet should wait: an attempt that is tried again computes its prompt again. The
last lines say how many were, by reason, and why handoffs were given up.
"""

import sys

from benchmarks.processes.children import exit_status
from benchmarks.stress.crowd import Crowd, crowd_options, crowded, lines
from launcher.stages import StageDisplay


def main() -> int:
    parser = crowd_options("overload", __doc__, requests=80)
    parser.add_argument("--samples", type=int, default=8, help="of each request")
    options = parser.parse_args()
    crowd = Crowd(options.requests, options.prompt, options.answer, options.samples)

    def run(stages: StageDisplay) -> None:
        with crowded(crowd, options.kv_memory) as (system, came):
            records = system.records()
        print("\n".join(lines(crowd, came)))
        for role, record in sorted(records.items()):
            ended = ", ".join(f"{count} {reason}" for reason, count in sorted(record.load.handoff.given_up.items()))
            print(f"{role}: {record.load.handoffs} handoffs passed; given up: {ended or 'none'}")
        print(f"prompt tokens that the prefill worker computed: {records['prefill'].load.prompt_tokens}")

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
