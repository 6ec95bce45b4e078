"""Measures several rates, or searches the highest rate with a good share of 90%, and writes reports."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from contracts.errors import ConfigError
from launcher.bench.html_report import SweptCurve, write_html
from launcher.bench.load_options import LoadOptions
from launcher.words import INTERRUPTED_STATUS
from workloads.goodput import Trial, best, search
from workloads.report import Report, share_interval

AnyLoad = TypeVar("AnyLoad", bound=LoadOptions)
ALL_ANSWERED, SOME_FAILED = 0, 1  # exit statuses
MIN_TRIAL_REQUESTS = 40
"""Requests at each rate of a search, so that a good share of 90% differs from one of 75% by more than chance."""


class RatedReport(Struct, frozen=True):
    """An entry of the JSON file of a search or a sweep."""

    rate: float
    report: Report


def trial_at(config: AnyLoad, measure: Callable[[AnyLoad], Report], rate: float) -> Trial:
    """Measures a load at a rate, for at least as long as `MIN_TRIAL_REQUESTS` take to come."""
    seconds = max(config.seconds, MIN_TRIAL_REQUESTS / rate)
    return Trial(rate, measure(structs.replace(config, rate=rate, seconds=seconds)), config.share)


def sweep(config: AnyLoad, measure: Callable[[AnyLoad], Report], settle: Callable[[], None], measured_on: str) -> int:
    """Measures each length of prompts at each rate, writes --json and --html, and returns the exit status."""
    curves = list[SweptCurve]()
    for length in config.prompt_lengths():
        at_length = structs.replace(config, prompt_tokens=length)
        name = f"{length} prompt tokens" if length else ""
        if config.sweep_prompts:
            print(name)
        curves.append(SweptCurve(name, rate_trials(at_length, measure, settle)))
        if curves[-1].trials[-1].report.interrupted:
            break
    trials = [trial for curve in curves for trial in curve.trials]
    write_report(config.json, [RatedReport(trial.rate, trial.report) for trial in trials])
    write_html(config.html, measured_on, curves)
    if config.find_goodput and not trials[-1].report.interrupted:  # beyond the highest good rate errors are expected
        return ALL_ANSWERED if all(best(curve.trials) for curve in curves) else SOME_FAILED
    return exit_status(trials)


def write_single(config: LoadOptions, report: Report, measured_on: str) -> int:
    """Writes the --json and the --html of one load, and returns the exit status. Raises `ConfigError`."""
    trials = [Trial(config.rate, report, config.share)]
    write_report(config.json, report)
    write_html(config.html, measured_on, [SweptCurve("", trials)])
    return exit_status(trials)


def rate_trials(config: AnyLoad, measure: Callable[[AnyLoad], Report], settle: Callable[[], None]) -> Sequence[Trial]:
    """Prints a line for each rate, and the goodput. `settle` ends a line of progress."""
    trials = list[Trial]()
    print(f"{'requests/s':>10}{'good':>8}{'95% sure':>12}{'TTFT p50, p90':>18}{'TPOT p50, p90':>18}{'errors':>8}")
    at = partial(trial_at, config, measure)
    for trial in search(at, config.rate, config.bisections) if config.find_goodput else map(at, config.rates()):
        trials.append(trial)
        settle()
        print(_line(trial), flush=True)
        if trial.report.interrupted:
            break
    if (found := best(trial for trial in trials if not trial.report.interrupted)) is None:
        print(f"goodput   0: at no rate were {config.share:.0%} of the requests good")
    else:
        print(f"goodput   {found.goodput:.2f} requests/s, at a rate of {found.rate:.3g}/s")
        unsure = [f"{trial.rate:.3g}" for trial in trials if not trial.sure]
        if unsure:
            print(f"          chance may have decided at {', '.join(unsure)}/s; a longer --seconds makes it surer")
    return trials


def exit_status(trials: Sequence[Trial]) -> int:
    if trials[-1].report.interrupted:
        return INTERRUPTED_STATUS
    return SOME_FAILED if any(trial.report.errors for trial in trials) else ALL_ANSWERED


def _line(trial: Trial) -> str:
    report = trial.report
    low, high = share_interval(report.good, report.requests)
    ttft, tpot = (f"{each.p50:.0f}, {each.p90:.0f}" for each in (report.ttft_ms, report.tpot_ms))
    interval = f"{100 * low:.0f} to {100 * high:.0f}%"
    share = f"{100 * report.good_share:.0f}%"
    return f"{trial.rate:10.3g}{share:>8}{interval:>12}{ttft:>18}{tpot:>18}{sum(report.errors.values()):8}"


def write_report(path: str, value: object) -> None:
    """Raises `ConfigError` if the file cannot be written."""
    if path:
        write_json(path, value, "--json")


def write_json(path: str, value: object, option: str) -> None:
    """Raises `ConfigError` that names the option if the file cannot be written."""
    try:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    except OSError as error:
        raise ConfigError(option, path, error.strerror or "cannot be written") from None
