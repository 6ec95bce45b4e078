"""Measures the front beside another checkout of it: `python -m benchmarks.front [PART …]`.

Workers are simulated: real sockets, queue and ledger, tokens without cost. The client only counts. Times are of one
host's clock; the cost of a gateway is the processor time of all its threads. With `--baseline` another checkout takes
turns with this one in the same run, with its own gateway, ledger and messages. `tokens` has `--streams` streams at
`--rate`, `streams` 1,000 at 10 tokens/s over four workers, `idle` one request at a time where workers answer at once,
`gateways` the load of `tokens`, four times as fast, over one gateway and over two, `reports` short requests with and
without traces and access log.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.front.measures import Delivered, added, delivered
from benchmarks.front.reports import NO_REPORTS_OPTIONS, OUTPUT_TOKENS_PER_REQUEST, tokens_per_core_second, tracing
from benchmarks.front.system import APIS, Shape, front
from benchmarks.processes.children import exit_status
from benchmarks.processes.python_path import ROOT
from benchmarks.report import head, in_turns, row
from launcher.stages import StageDisplay

OURS = "this code"
BUSY_RATE_FACTOR = 4  # times the usual rate
IDLE_REQUESTS = 200
GATEWAY_COLUMNS = ("", "tokens per core-second", "cores", "tokens per event", "p50 ms", "p99 ms", "missing")
Sides = Mapping[str, Path]
"""Checkouts by their name."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front", description=__doc__)
    parser.add_argument("parts", nargs="*", type=_part, metavar="PART", help=f"{', '.join(PARTS)}; none: all")
    parser.add_argument("--baseline", type=Path, help="directory of another checkout, measured in turns with this one")
    parser.add_argument("--api", choices=list(APIS), default="chat")
    parser.add_argument("--rounds", type=int, default=3, help="turns, of which the median counts")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--streams", type=int, default=256, help="of `tokens` and `gateways`")
    parser.add_argument("--rate", type=float, default=10.0, help="tokens/s of each stream")
    options = parser.parse_args()
    sides = {OURS: ROOT} | ({"baseline": options.baseline.resolve()} if options.baseline else {})

    def work(stages: StageDisplay) -> None:
        for name, part in PARTS.items():
            if name in (options.parts or PARTS):
                part(options, sides)

    return exit_status(work)


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PARTS)}")
    return name


def tokens(options: argparse.Namespace, sides: Sides) -> None:
    shape = Shape(pause=1 / options.rate)
    ways = {name: _streamed(path, options, options.streams, options.rate, shape) for name, path in sides.items()}
    _measure(f"{options.streams} streams at {options.rate:g} tokens/s", options, ways, "baseline")


def streams(options: argparse.Namespace, sides: Sides) -> None:
    shape = Shape(workers=4, pause=0.1)
    ways = {name: _streamed(path, options, 1000, 10, shape) for name, path in sides.items()}
    _measure("1000 streams at 10 tokens/s, four workers", options, ways, "baseline")


def idle(options: argparse.Namespace, sides: Sides) -> None:
    ways = {name: partial(added, path, options.api, IDLE_REQUESTS) for name, path in sides.items()}
    rounds = in_turns(ways, options.rounds, warm_up=0)
    print(f"time to the first token ({options.api}) where workers answer at once, p50 of {IDLE_REQUESTS}\n")
    print(head("", "ms"))
    for name in ways:
        print(row(name, f"{median(each[name] for each in rounds):.2f}"))
    print(flush=True)


def gateways(options: argparse.Namespace, sides: Sides) -> None:
    rate = BUSY_RATE_FACTOR * options.rate
    ways = {
        name: _streamed(sides[OURS], options, options.streams, rate, Shape(gateways=count, pause=1 / rate))
        for name, count in (("two gateways", 2), ("one gateway", 1))
    }
    _measure(f"{options.streams} streams at {rate:g} tokens/s", options, ways, "one gateway")


def reports(options: argparse.Namespace, sides: Sides) -> None:
    begin = partial(front, sides[OURS])
    with tracing() as words:
        ways = {
            "with": partial(tokens_per_core_second, begin, options.api, words),
            "without": partial(tokens_per_core_second, begin, options.api, NO_REPORTS_OPTIONS),
        }
        rounds = in_turns(ways, options.rounds, warm_up=0)
    print(f"traces of 1% and access log; requests of {OUTPUT_TOKENS_PER_REQUEST} tokens ({options.api})\n")
    print(head("", "tokens per core-second"))
    for name in ways:
        print(row(name, f"{median(each[name] for each in rounds):.0f}"))
    shares = [each["with"] / each["without"] for each in rounds]
    print(f"\nwith over without, by rounds: {' '.join(f'{share:.3f}' for share in shares)}", flush=True)


def _streamed(
    checkout: Path, options: argparse.Namespace, count: int, rate: float, shape: Shape
) -> Callable[[], Delivered]:
    return partial(delivered, partial(front, checkout), options.api, count, rate, options.seconds, shape)


def _measure(
    title: str, options: argparse.Namespace, ways: Mapping[str, Callable[[], Delivered]], compared_with: str
) -> None:
    """Prints a table of the ways' medians, and the first way's tokens per core-second over those of `compared_with`."""
    rounds = in_turns(ways, options.rounds, warm_up=0)
    print(f"{title} ({options.api})\n\n{head(*GATEWAY_COLUMNS)}")
    rates = {}
    for name in ways:
        found = [each[name] for each in rounds]
        rates[name] = median(one.tokens_per_core_second for one in found)
        cells = (
            f"{median(one.core for one in found):.2f}",
            f"{median(one.tokens_per_event for one in found):.2f}",
            f"{median(one.delay_p50_ms for one in found):.1f}",
            f"{median(one.delay_p99_ms for one in found):.1f}",
            max(one.missing for one in found),
        )
        print(row(name, f"{rates[name]:.0f}", *cells))
    first = next(iter(ways))
    if compared_with in rates:
        share = rates[first] / rates[compared_with]
        print(f"\ntokens per core-second, {first} over {compared_with}: {share:.2f}")
    print(flush=True)


PARTS: dict[str, Callable[[argparse.Namespace, Sides], None]] = {
    "tokens": tokens,
    "streams": streams,
    "idle": idle,
    "gateways": gateways,
    "reports": reports,
}

if __name__ == "__main__":
    sys.exit(main())
