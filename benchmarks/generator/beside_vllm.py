"""Measures a deployment by `baton bench` and by `vllm bench serve` in turns.

    python -m benchmarks.generator.beside_vllm [URL] --tokenizer DIR

Without a URL the deployment is the server of known moments, so that only the clients differ: first tokens come within
one interval between tokens, evenly spread, and the limit of TTFT is passed by some of them.
Both send completions of random tokens at a constant rate, with equal lengths, from one process; each has prompts of its
own in every round. vLLM is installed as by `benchmarks.peers`; only its client runs.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.generator.steady_server import steady_server
from benchmarks.peers.servers import VLLM
from benchmarks.peers.setup import PeerError, directory_of, python_of, set_up
from benchmarks.processes.children import child, exit_status, last_line
from benchmarks.report import head, in_turns, row
from contracts.errors import GatewayError
from launcher.bench.machine import machine
from launcher.bench.options import BenchConfig
from launcher.bench.run import BenchRun
from launcher.instance.endpoint import ClientEndpoint
from launcher.stages import StageDisplay

FIGURE_NAMES = ("TTFT p50 ms", "TTFT p90 ms", "TPOT p50 ms", "TPOT p90 ms", "goodput/s", "output tokens/s")
OURS, THEIRS = "baton bench", "vllm bench serve"
EVEN_BURSTINESS = 1e6
"""Shape of vLLM's gaps between requests: hardly any spread."""
STREAMS, TOKENS_PER_S = 50, 20.0
"""Of the server of known moments."""
Figures = Mapping[str, float]


def ours(options: argparse.Namespace, model: str, seeds: Iterator[int], stages: StageDisplay) -> Figures:
    config = BenchConfig(
        rate=options.rate,
        seconds=options.seconds,
        burstiness=float("inf"),
        prompt_tokens=str(options.prompt_tokens),
        output_tokens=str(options.output_tokens),
        vocabulary=options.vocabulary,
        slo_ttft_ms=options.slo_ttft_ms,
        slo_tpot_ms=options.slo_tpot_ms,
        seed=next(seeds),
        processes=1,
    )
    report = BenchRun(ClientEndpoint(options.url, "", ""), model, stages).load(config)
    if report.errors:
        raise GatewayError(f"requests failed: {report.errors}")
    times = report.ttft_ms.p50, report.ttft_ms.p90, report.tpot_ms.p50, report.tpot_ms.p90
    return dict(zip(FIGURE_NAMES, (*times, report.goodput_per_s, report.output_tokens_per_s), strict=True))


@contextmanager
def theirs(
    options: argparse.Namespace, model: str, seeds: Iterator[int], directory: Path
) -> Iterator[Callable[[], Figures]]:
    """Loads vLLM's client, and yields a function that measures with it. Raises `PeerError` if it dies."""
    results, log = directory / "result.json", directory / "vllm-bench.log"
    words = {
        "backend": "openai",
        "base-url": options.url,
        "endpoint": "/v1/completions",
        "model": model,
        "tokenizer": str(options.tokenizer),
        "dataset-name": "random",
        "random-input-len": options.prompt_tokens,
        "random-output-len": options.output_tokens,
        "num-prompts": round(options.rate * options.seconds),
        "request-rate": options.rate,
        "burstiness": EVEN_BURSTINESS,
        "temperature": 0,
        "percentile-metrics": "ttft,tpot",
        "metric-percentiles": "50,90",
        "result-filename": str(results),
    }
    fixed = [text for name, value in words.items() for text in (f"--{name}", str(value))]
    fixed += ["--ignore-eos", "--save-result", "--disable-tqdm"]
    fixed += ["--goodput", f"ttft:{options.slo_ttft_ms}", f"tpot:{options.slo_tpot_ms}"]
    command = (str(python_of(directory_of(""), VLLM)), str(Path(__file__).with_name("vllm_bench.py")))
    with child(command, log, piped=True) as process:
        assert process.stdin is not None and process.stdout is not None

        def await_done() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == "done":
                    return
            raise PeerError(f"vllm bench serve has ended: {last_line(log)}")

        def measure() -> Figures:
            assert process.stdin is not None
            process.stdin.write(json.dumps([*fixed, "--seed", str(next(seeds))]) + "\n")
            process.stdin.flush()
            await_done()
            found = json.loads(results.read_text())
            times = (found[f"p{share}_{name}_ms"] for name in ("ttft", "tpot") for share in (50, 90))
            return dict(zip(FIGURE_NAMES, (*times, found["request_goodput"], found["output_throughput"]), strict=True))

        await_done()
        yield measure


def show(rounds: list[dict[str, Figures]]) -> None:
    print(head("", *FIGURE_NAMES))
    for name in (OURS, THEIRS):
        print(row(name, *(f"{median(each[name][figure] for each in rounds):.4g}" for figure in FIGURE_NAMES)))
    ratios = [[each[OURS][figure] / each[THEIRS][figure] for each in rounds] for figure in FIGURE_NAMES]
    print(row("ours over theirs, median of rounds", *(f"{median(each):.3f}" for each in ratios)))
    print(row("least to most", *(f"{min(each):.3f} to {max(each):.3f}" for each in ratios)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generator.beside_vllm", description=__doc__)
    parser.add_argument("url", nargs="?", default="", help="of a running deployment; none: of known moments")
    parser.add_argument("--tokenizer", type=Path, required=True, help="directory with the model's tokenizer, for vLLM")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rate", type=float, default=6.0, help="requests/s")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=4096, help="our random ids are below it")
    parser.add_argument("--slo-ttft-ms", type=float, default=400.0)
    parser.add_argument("--slo-tpot-ms", type=float, default=20.0)
    options = parser.parse_args()

    def work(stages: StageDisplay) -> None:
        set_up(directory_of(""), VLLM, stages)
        seeds = count(1)
        print(machine())
        with TemporaryDirectory() as folder, ExitStack() as running:
            if not options.url:
                log = Path(folder) / "server.log"
                options.url = running.enter_context(steady_server(log, STREAMS, TOKENS_PER_S, batch=1))
            model = ClientEndpoint(options.url, "", "").client().model()
            ways: dict[str, Callable[[], Figures]] = {
                OURS: partial(ours, options, model, seeds, stages),
                THEIRS: running.enter_context(theirs(options, model, seeds, Path(folder))),
            }
            rounds = in_turns(ways, options.rounds, warm_up=1)
        stages.settle()
        show(rounds)

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
