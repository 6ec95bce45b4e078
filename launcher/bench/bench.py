"""Measures an endpoint under a load (`baton bench`), and compares reports."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from contracts.errors import ConfigError, GatewayError
from infra.cli import parse
from infra.redis.records import WorkerRecord
from launcher.bench.calibration import calibrate, workers_of
from launcher.bench.html_report import write_comparison
from launcher.bench.machine import machine
from launcher.bench.options import BenchConfig
from launcher.bench.rates import ALL_ANSWERED, sweep, write_json, write_single
from launcher.bench.run import BenchRun
from launcher.instance.endpoint import ClientEndpoint, endpoint_of, running_instance
from launcher.refusal import refusing
from launcher.stages import StageDisplay
from workloads.report import REPORT_FORM, Report
from workloads.table import comparison, table

COMPARED_ALONE = "stands alone: ./baton bench --compare before.json after.json"


@refusing
def bench(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit status."""
    if arguments and arguments[0] == "--compare":
        return compare(arguments[1:])
    if any(word.partition("=")[0] == "--compare" for word in arguments):
        raise ConfigError("--compare", " ".join(arguments), COMPARED_ALONE)
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--url", *arguments]
    config = parse(BenchConfig, arguments, "baton bench")
    config.check()
    return _measure(config, StageDisplay(sys.stderr))


def compare(paths: Sequence[str]) -> int:
    """Prints two reports beside each other, and writes the page of `--html FILE` behind them.

    Raises `ConfigError` for files that are no reports.
    """
    files, page = (paths[:2], paths[3]) if len(paths) == 4 and paths[2] == "--html" else (paths, "")
    if len(files) != 2:
        raise ConfigError("--compare", " ".join(paths), "expected two files that --json wrote, and perhaps --html FILE")
    first, second = map(_read, files)
    names = Path(files[0]).stem[-16:], Path(files[1]).stem[-16:]
    print("\n".join(comparison(first, second, names)))
    if page:
        write_comparison(page, {names[0]: first, f"{names[1]} " if names[0] == names[1] else names[1]: second})
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


def _calibrate(config: BenchConfig, endpoint: ClientEndpoint, model: str, before: Sequence[WorkerRecord]) -> None:
    if config.calibrate:
        write_json(config.calibrate, calibrate(endpoint, config, model, before), "--calibrate")


def _measure(config: BenchConfig, stages: StageDisplay) -> int:
    instance = None if config.url else running_instance()
    url = config.url or (instance.url if instance is not None else "")
    if not url:
        raise GatewayError("no instance is running; start one with ./baton up, or name one: ./baton bench URL")
    endpoint = endpoint_of(url, instance, config.api_key_file, config.cert)
    model = config.model or endpoint.client().model()
    print(f"{machine()}\n{model} at {url}; good: TTFT ≤ {config.slo_ttft_ms:g} ms and TPOT ≤ {config.slo_tpot_ms:g} ms")
    run = BenchRun(endpoint, model, stages)
    before = workers_of(endpoint) if config.calibrate else ()
    if config.find_goodput or config.sweep:
        status = sweep(config, partial(run.load, give_up=True), stages.settle, machine())
        _calibrate(config, endpoint, model, before)
        return status
    report = run.load(config)
    stages.settle()
    print("\n".join(table(report)), flush=True)
    status = write_single(config, report, machine())
    if not report.interrupted:
        _calibrate(config, endpoint, model, before)
    return status
