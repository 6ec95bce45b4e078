"""Measures the front beside another checkout of it: `python -m benchmarks.front [PART …]`.

Workers are simulated: real sockets, queue and ledger, tokens without cost. The client only counts. Times are of one
host's clock; the cost of a gateway is the processor time of all its threads. With `--baseline` another checkout takes
turns with this one in the same run, with its own gateway, ledger and messages. With `--peer vllm` vLLM's API server
takes turns in `tokens`, over an engine that makes up tokens; it is installed as `benchmarks.peers` does.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.front.commands import asked, asked_lines
from benchmarks.front.measures import Delivered, added, delivered
from benchmarks.front.system import APIS, Begin, Shape, front
from benchmarks.front.vllm import APIS as PEER_APIS
from benchmarks.front.vllm import vllm_front
from benchmarks.peers.servers import VLLM
from benchmarks.peers.setup import directory_of, set_up
from benchmarks.processes.children import exit_status
from benchmarks.processes.python_path import ROOT
from launcher.stages import StageDisplay

PARTS = ("tokens", "streams", "idle", "gateways", "commands", "crowds")
BUSY_RATE_FACTOR = 4  # times the usual rate
CROWDS = {
    "nobody": ("", 0),
    "10k idle": ("idle", 10_000),
    "1k connects/s": ("connects", 1000),
    "100 slow": ("slow", 100),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front", description=__doc__)
    parser.add_argument("parts", nargs="*", type=_part, metavar="PART", help=f"{', '.join(PARTS)}; none: all")
    parser.add_argument("--baseline", type=Path, help="directory of another checkout, measured in turns with this one")
    parser.add_argument("--peer", choices=[VLLM.name], help="measured in turns with this code, in `tokens`")
    parser.add_argument("--directory", default="", help="of peers, as that of `benchmarks.peers`")
    parser.add_argument("--api", choices=list(APIS), default="chat")
    parser.add_argument("--rounds", type=int, default=3, help="turns, of which the median counts")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--streams", type=int, default=256, help="of `tokens` and `gateways`")
    parser.add_argument("--rate", type=float, default=10.0, help="tokens/s of each stream")
    options = parser.parse_args()
    sides = {"this code": ROOT} | ({"baseline": options.baseline.resolve()} if options.baseline else {})
    if options.peer and options.api not in PEER_APIS:
        parser.error(f"--peer {options.peer} is asked by --api {' or '.join(PEER_APIS)}, not by {options.api}")
    parts = [part for part in PARTS if part in (options.parts or PARTS)]

    def work(stages: StageDisplay) -> None:
        if options.peer:
            set_up(directory_of(options.directory), VLLM, stages)
        for part in parts:
            for line in _PARTS[part](options, sides):
                print(line, flush=True)

    return exit_status(work)


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PARTS)}")
    return name


def tokens(options: argparse.Namespace, sides: dict[str, Path]) -> list[str]:
    shape = Shape(pause=1 / options.rate)
    title = f"{options.streams} streams ({options.api}) at {options.rate:g} tokens/s"
    begins = _begins(sides)
    if options.peer:
        begins[options.peer] = partial(vllm_front, directory_of(options.directory))
    return _table(title, options, begins, lambda one: _streamed(one, options, options.streams, shape))


def streams(options: argparse.Namespace, sides: dict[str, Path]) -> list[str]:
    shape = Shape(workers=4, pause=0.1)
    title = f"1000 streams ({options.api}) at 10 tokens/s, four workers"
    seconds = options.seconds
    return _table(title, options, _begins(sides), lambda one: delivered(one, options.api, 1000, 10, seconds, shape))


def idle(options: argparse.Namespace, sides: dict[str, Path]) -> list[str]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, checkout in sides.items():
            found[name].append(added(checkout, options.api, 200))
    head = f"time to the first token ({options.api}) where workers answer at once, p50 of 200, ms"
    return [head, *(f"  {name:12} {median(all):.2f}" for name, all in found.items()), ""]


def gateways(options: argparse.Namespace, sides: dict[str, Path]) -> list[str]:
    options = argparse.Namespace(**{**vars(options), "rate": BUSY_RATE_FACTOR * options.rate})
    found: dict[str, list[Delivered]] = {"one": [], "two": []}
    for _ in range(options.rounds):
        for name, count in (("one", 1), ("two", 2)):
            shape = Shape(gateways=count, pause=1 / options.rate)
            found[name].append(_streamed(partial(front, sides["this code"]), options, options.streams, shape))
    lines = _lines(
        f"{options.streams} streams ({options.api}) at {options.rate:g} tokens/s, over one gateway or two", found
    )
    share = _rate(found["two"]) / _rate(found["one"])
    return [*lines, f"  tokens per core-second of two against one: {share:.2f}", ""]


def crowds(options: argparse.Namespace, sides: dict[str, Path]) -> list[str]:
    found: dict[str, list[Delivered]] = {name: [] for name in CROWDS}
    for _ in range(options.rounds):
        for name, disturbance in CROWDS.items():
            shape = Shape(pause=1 / options.rate)
            begin = partial(front, sides["this code"])
            run = delivered(begin, options.api, 64, options.rate, options.seconds, shape, disturbance)
            found[name].append(run)
    return [*_lines(f"64 streams ({options.api}) beside others", found), ""]


def commands(options: argparse.Namespace, sides: dict[str, Path]) -> list[str]:
    return [*(line for name, checkout in sides.items() for line in asked_lines(name, asked(checkout))), ""]


def _begins(sides: dict[str, Path]) -> dict[str, Begin]:
    return {name: partial(front, checkout) for name, checkout in sides.items()}


def _streamed(begin: Begin, options: argparse.Namespace, count: int, shape: Shape) -> Delivered:
    return delivered(begin, options.api, count, options.rate, options.seconds, shape)


def _table(
    title: str, options: argparse.Namespace, sides: dict[str, Begin], measure: Callable[[Begin], Delivered]
) -> list[str]:
    found: dict[str, list[Delivered]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, begin in sides.items():
            found[name].append(measure(begin))
    lines, ours = _lines(title, found), _rate(found["this code"])
    for name in sides.keys() - {"this code"}:
        lines.append(f"  tokens per core-second of this code against {name}: {ours / _rate(found[name]):.2f}")
    return [*lines, ""]


def _lines(title: str, found: dict[str, list[Delivered]]) -> list[str]:
    head = f"  {'':14}{'tokens/core-s':>14}{'cores':>8}{'tokens/event':>14}{'p50 ms':>9}{'p99 ms':>9}{'missing':>9}"
    return [title, head, *(_line(name, all) for name, all in found.items())]


def _line(name: str, found: Sequence[Delivered]) -> str:
    def middle(of: Callable[[Delivered], float]) -> float:
        return median(map(of, found))

    return (
        f"  {name:14}{_rate(found):>14.0f}{middle(lambda one: one.core):>8.2f}"
        f"{middle(lambda one: one.tokens_per_event):>14.2f}{middle(lambda one: one.delay_p50_ms):>9.1f}"
        f"{middle(lambda one: one.delay_p99_ms):>9.1f}{max(one.missing for one in found):>9}"
    )


def _rate(found: Sequence[Delivered]) -> float:
    return median(one.tokens_per_core_second for one in found)


_PARTS = {
    "tokens": tokens,
    "streams": streams,
    "idle": idle,
    "gateways": gateways,
    "commands": commands,
    "crowds": crowds,
}

if __name__ == "__main__":
    sys.exit(main())
