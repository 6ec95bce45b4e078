"""Measures an endpoint under a load (`baton bench`), and compares reports."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from contracts.errors import BatonError, ConfigError, GatewayError
from infra.cli import parse
from launcher.bench.machine import machine
from launcher.bench.options import BenchConfig
from launcher.bench.run import BenchRun
from launcher.endpoint import endpoint_of, running_instance
from launcher.stages import StageDisplay
from workloads.goodput import Trial, best, search
from workloads.report import REPORT_FORM, Report, share_interval
from workloads.table import comparison, table

ALL_ANSWERED, SOME_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130  # exit statuses


def bench(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    try:
        if arguments and arguments[0] == "--compare":
            return compare(arguments[1:])
        if arguments and not arguments[0].startswith("-"):
            arguments = ["--url", *arguments]
        config = parse(BenchConfig, arguments, "baton bench")
        config.check()
        return _measure(config, StageDisplay(sys.stderr))
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def compare(paths: Sequence[str]) -> int:
    """Prints two reports beside each other. Raises `ConfigError` for files that are no reports."""
    if len(paths) != 2:
        raise ConfigError("--compare", " ".join(paths), "expected two files that --json wrote")
    first, second = map(_read, paths)
    print("\n".join(comparison(first, second, (Path(paths[0]).stem[-16:], Path(paths[1]).stem[-16:]))))
    return ALL_ANSWERED


def _read(path: str) -> Report:
    try:
        report = msgspec.json.decode(Path(path).read_bytes(), type=Report)
    except OSError as error:
        raise ConfigError("--compare", path, error.strerror or "cannot be read") from None
    except msgspec.DecodeError as error:
        raise ConfigError("--compare", path, f"is no report of one load: {error}") from None
    if report.form != REPORT_FORM:
        raise ConfigError("--compare", path, f"has form {report.form}; this version reads form {REPORT_FORM}")
    return report


def _measure(config: BenchConfig, stages: StageDisplay) -> int:
    instance = None if config.url else running_instance()
    url = config.url or (instance.url if instance is not None else "")
    if not url:
        raise GatewayError("no instance is running; start one with ./baton up, or name one: ./baton bench URL")
    endpoint = endpoint_of(url, instance, config.api_key_file, config.cert)
    model = config.model or endpoint.client().model()
    print(f"{machine()}\n{model} at {url}; good: TTFT ≤ {config.slo_ttft_ms:g} ms and TPOT ≤ {config.slo_tpot_ms:g} ms")
    run = BenchRun(config, endpoint, model, stages)
    if config.find_goodput or config.sweep:
        return _measure_rates(config, run)
    report = run.load(config)
    stages.settle()
    print("\n".join(table(report)))
    _write(config.json, report)
    return INTERRUPTED if report.interrupted else SOME_FAILED if report.errors else ALL_ANSWERED


def _measure_rates(config: BenchConfig, run: BenchRun) -> int:
    """Prints a line for each rate, and the goodput."""
    trials = list[Trial]()
    print(f"{'requests/s':>10}{'good':>8}{'95% sure':>12}{'TTFT p50, p90':>18}{'TPOT p50, p90':>18}{'errors':>8}")
    rates = search(run.trial, config.rate, config.bisections) if config.find_goodput else map(run.trial, config.rates())
    for trial in rates:
        trials.append(trial)
        run.stages.settle()
        print(_line(trial), flush=True)
        if trial.report.interrupted:
            break
    _write(config.json, [{"rate": trial.rate, "report": trial.report} for trial in trials])
    if (found := best(trials)) is None:
        print(f"goodput   0: at no rate were {config.share:.0%} of the requests good")
    else:
        print(f"goodput   {found.goodput:.2f} requests/s, at a rate of {found.rate:.3g}/s")
        unsure = [f"{trial.rate:.3g}" for trial in trials if not trial.sure]
        if unsure:
            print(f"          chance may have decided at {', '.join(unsure)}/s; a longer --seconds makes it surer")
    if trials[-1].report.interrupted:
        return INTERRUPTED
    return SOME_FAILED if any(trial.report.errors for trial in trials) else ALL_ANSWERED


def _line(trial: Trial) -> str:
    report = trial.report
    low, high = share_interval(report.good, report.requests)
    ttft, tpot = (f"{each.p50:.0f}, {each.p90:.0f}" for each in (report.ttft_ms, report.tpot_ms))
    interval = f"{100 * low:.0f} to {100 * high:.0f}%"
    share = f"{100 * report.good_share:.0f}%"
    return f"{trial.rate:10.3g}{share:>8}{interval:>12}{ttft:>18}{tpot:>18}{sum(report.errors.values()):8}"


def _write(path: str, value: object) -> None:
    """Raises `ConfigError` if the file cannot be written."""
    if not path:
        return
    try:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    except OSError as error:
        raise ConfigError("--json", path, error.strerror or "cannot be written") from None
