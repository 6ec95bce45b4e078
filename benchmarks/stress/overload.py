"""Shows what overload costs: many samples come at once to workers whose pools hold a few of them.

    python -m benchmarks.stress.overload [--requests 80] [--samples 8] [--kv-memory 4]

Nobody fails here, so whoever has no room yet should wait: an attempt that is tried again computes its prompt again. The
last lines say how many were, by reason, and why handoffs were given up.
"""

import sys
from collections.abc import Iterator

from benchmarks.processes.split_system import SplitSystem
from benchmarks.stress.crowd import run_crowd


def handoffs(system: SplitSystem) -> Iterator[str]:
    records = system.records()
    for role, record in sorted(records.items()):
        ended = ", ".join(f"{count} {reason}" for reason, count in sorted(record.load.handoff.given_up.items()))
        yield f"{role}: {record.load.handoffs} handoffs passed; given up: {ended or 'none'}"
    yield f"prompt tokens that the prefill worker computed: {records['prefill'].load.prompt_tokens}"


def main() -> int:
    return run_crowd(
        "overload",
        __doc__,
        80,
        lambda parser: parser.add_argument("--samples", type=int, default=8, help="of each request"),
        more=handoffs,
    )


if __name__ == "__main__":
    sys.exit(main())
