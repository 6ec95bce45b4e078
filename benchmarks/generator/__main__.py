"""Measures how exactly one process of `baton bench` times streams: `python -m benchmarks.generator [--streams N …]`.

A server in another process, on another core, writes tokens at moments that it tells afterwards. The generator's own
times stand beside them: how late it noticed each token, and how long before a request's arrival it took the time of
sending. Streams are timed well if `--share` of both are within `--within-ms`. On a machine with other work, these times
hold the waits for a core, too: the column `undisturbed` counts only moments around which neither process waited.
"""

import argparse
import random
import time
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import msgspec
import uvloop
from msgspec import Struct

from benchmarks.generator.core_waits import CoreWaits
from benchmarks.generator.known_moments import Told
from benchmarks.generator.steady_server import steady_server
from benchmarks.processes.children import exit_status
from benchmarks.report import head, row
from contracts.errors import BatonError
from contracts.slo import percentile
from launcher.bench.machine import machine
from launcher.bench.sender import Sender, connections_to
from launcher.instance.endpoint import ClientEndpoint
from launcher.stages import StageDisplay
from workloads.outcome import RequestOutcome
from workloads.request import PlannedRequest, Span, TimedRequest

VOCABULARY_IDS = 1 << 30
PROMPT_TOKENS = 4
ARRIVALS_S = 2.0
"""In which all streams begin."""
TIMEOUT_S = 60.0
MIN_MOMENTS = 1000
"""Undisturbed moments from which a share is told."""
COLUMN_TITLES = (
    "streams",
    "tokens/s",
    "tokens missing",
    "late: p50, p99, max ms",
    "within",
    "moments undisturbed",
    "late: p50, p99, max ms",
    "within",
    "cores",
    "µs a token",
)


class Timed(Struct, frozen=True):
    """What the generator saw beside what the server did: how far apart, in ms."""

    late_ms: list[float]
    undisturbed_ms: list[float]
    """Of the moments around which neither process waited for a core."""
    missing: int
    seconds: float
    processor_s: float

    def timed_well(self, options: argparse.Namespace) -> bool:
        enough = len(self.undisturbed_ms) >= MIN_MOMENTS and not self.missing
        return enough and share_within(self.undisturbed_ms, options.within_ms) >= options.share


def share_within(late_ms: list[float], limit_ms: float) -> float:
    return sum(each <= limit_ms for each in late_ms) / max(1, len(late_ms))


def measure(options: argparse.Namespace, streams: int, log: Path) -> Timed:
    """Raises `BatonError` for a server that does not start, and for requests that fail."""
    with steady_server(log, streams, options.rate, options.batch) as url:
        seed = random.Random(streams)
        tokens = round(options.rate * options.seconds)
        prompts = (Span(seed.getrandbits(32), PROMPT_TOKENS) for _ in range(streams))
        requests = (PlannedRequest(tokens, spans=(prompt,)) for prompt in prompts)
        load = [TimedRequest(ARRIVALS_S * number / streams, request) for number, request in enumerate(requests)]
        begin, spent, waits = time.perf_counter(), time.process_time(), CoreWaits([], [])
        outcomes = uvloop.run(_send(url, load, begin, waits))
        spent, seconds = time.process_time() - spent, time.perf_counter() - begin
        told = msgspec.json.decode(httpx.get(f"{url}/moments", trust_env=False).content, type=Told)
    late, missing = _beside(load, {each.due_s: each for each in outcomes}, told, begin)
    undisturbed = [late_ms for at, late_ms in late if waits.undisturbed(at) and told.waits.undisturbed(at)]
    return Timed([late_ms for _, late_ms in late], undisturbed, missing, seconds, spent)


async def _send(url: str, load: list[TimedRequest], begin: float, waits: CoreWaits) -> list[RequestOutcome]:
    waits.look()
    outcomes = list[RequestOutcome]()
    async with connections_to(ClientEndpoint(url, "", ""), TIMEOUT_S) as connections:
        await Sender(connections, "none", VOCABULARY_IDS, outcomes.append).open_load(load, begin=begin)
    return outcomes


def _beside(
    load: list[TimedRequest], outcomes: dict[float, RequestOutcome], told: Told, begin: float
) -> tuple[list[tuple[float, float]], int]:
    """Returns each moment of the server, s, with the ms by which the generator's is off, and counts missing tokens."""
    late, missing = list[tuple[float, float]](), 0
    for each in load:
        outcome = outcomes[each.due_s]
        if outcome.timings is None:
            raise BatonError(f"a stream failed: {outcome.error}")
        (span,) = each.request.spans
        moments = told.moments[",".join(map(str, span.ids(VOCABULARY_IDS)))]
        sent = begin + outcome.sent_s
        late.append((moments.came, 1000 * (moments.came - sent)))
        seen = accumulate(outcome.gaps_ms, initial=1000 * sent + outcome.timings.ttft_ms)
        late += [(wrote, saw - 1000 * wrote) for saw, wrote in zip(seen, moments.written, strict=False)]
        missing += len(moments.written) - 1 - len(outcome.gaps_ms)
    return late, missing


def show(streams: int, timed: Timed, within_ms: float) -> None:
    tokens = len(timed.late_ms) - streams
    cells = [f"{tokens / timed.seconds:.0f}", timed.missing, *_lateness(timed.late_ms, within_ms)]
    cells.append(f"{len(timed.undisturbed_ms) / len(timed.late_ms):.0%}")
    cells += _lateness(timed.undisturbed_ms, within_ms)
    cells += [f"{timed.processor_s / timed.seconds:.2f}", f"{1e6 * timed.processor_s / tokens:.0f}"]
    print(row(streams, *cells), flush=True)


def _lateness(late_ms: list[float], within_ms: float) -> list[str]:
    shown = ", ".join(f"{percentile(late_ms, share):.2f}" for share in (0.5, 0.99, 1.0))
    return [shown, f"{share_within(late_ms, within_ms):.2%}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generator", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[100, 250, 500, 750, 1000], help="streams at once")
    parser.add_argument("--rate", type=float, default=20.0, help="tokens/s of each stream")
    parser.add_argument("--seconds", type=float, default=10.0, help="that a stream lasts")
    parser.add_argument("--batch", type=int, default=16, help="streams whose tokens have the same moments")
    parser.add_argument("--within-ms", type=float, default=1.0, help="how late a moment may be noticed")
    parser.add_argument("--share", type=float, default=0.99, help="of the moments, which are to be noticed so early")
    options = parser.parse_args()

    def work(stages: StageDisplay) -> None:
        print(machine())
        print(head(*COLUMN_TITLES))
        enough = 0
        with TemporaryDirectory() as folder:
            for streams in options.streams:
                timed = measure(options, streams, Path(folder) / "server.log")
                show(streams, timed, options.within_ms)
                if timed.timed_well(options):
                    enough = max(enough, streams)
        print(f"{enough} streams at {options.rate:g} tokens/s: {options.share:.0%} within {options.within_ms:g} ms")

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
