"""A report as text, and two reports beside each other."""

from collections.abc import Iterator

from workloads.report import Percentiles, Report

LATE_MS = 5.0
"""Lateness (99th percentile) from which the load generator counts as the limit, in ms."""
SHOWN_ERRORS = 5
SPREADS = (
    ("TTFT", "ttft_ms"),
    ("ITL", "itl_ms"),
    ("TPOT", "tpot_ms"),
    ("total", "e2e_ms"),
    ("sent late", "late_ms"),
)


def table(report: Report) -> Iterator[str]:
    """Yields the lines of a report."""
    yield f"{'ms':10}" + "".join(f"{name:>10}" for name in Percentiles.__struct_fields__)
    for name, attribute in SPREADS:
        figures: Percentiles = getattr(report, attribute)
        yield f"{name:10}" + "".join(f"{getattr(figures, key):10.1f}" for key in Percentiles.__struct_fields__)
    slo, missed = report.slo, report.missed
    yield (
        f"goodput   {report.goodput_per_s:.2f} requests/s: {report.good} of {report.requests} "
        f"({100 * report.good_share:.0f}%) met TTFT {slo.ttft_ms:g} ms and TPOT {slo.tpot_ms:g} ms"
    )
    yield f"missed    {missed.ttft} by TTFT, {missed.tpot} by TPOT, {missed.both} by both"
    if report.undecided:
        yield f"undecided {report.undecided}: they are good or not by how late this load generator read their tokens"
    cached = f", {100 * report.cached_share:.0f}% of the prompt tokens from a cache" if report.cached_share else ""
    yield (
        f"rate      {report.requests_per_s:.2f} requests/s, {report.output_tokens_per_s:.1f} output tokens/s, "
        f"{report.prompt_tokens_per_s:.1f} prompt tokens/s in {report.seconds:.1f} s{cached}"
    )
    yield f"errors    {sum(report.errors.values())}"
    for error, count in list(report.errors.items())[:SHOWN_ERRORS]:
        yield f"          {count} x {error}"
    if report.interrupted:
        yield "interrupted before its end: these are the requests that had ended"
    if report.late_ms.p99 > LATE_MS:
        yield (
            f"warning: 1% of the requests were sent {report.late_ms.p99:.0f} ms late or later, so part of these times "
            "is this load generator's; run it on another host, or lower the rate"
        )


def comparison(first: Report, second: Report, names: tuple[str, str]) -> Iterator[str]:
    """Yields the lines of two reports beside each other, with the ratio of the second to the first."""
    yield f"{'':24}{names[0]:>18}{names[1]:>18}{'ratio':>8}"
    for title, attribute in SPREADS[:-1]:
        for key in ("p50", "p90", "p99"):
            yield _compared(
                f"{title} {key}, ms", getattr(getattr(first, attribute), key), getattr(getattr(second, attribute), key)
            )
    for title, attribute in (
        ("goodput, requests/s", "goodput_per_s"),
        ("good, share", "good_share"),
        ("requests/s", "requests_per_s"),
        ("output tokens/s", "output_tokens_per_s"),
        ("prompt tokens/s", "prompt_tokens_per_s"),
    ):
        yield _compared(title, getattr(first, attribute), getattr(second, attribute))
    yield _compared("errors", sum(first.errors.values()), sum(second.errors.values()))
    if first.slo != second.slo:
        limits = (f"TTFT {slo.ttft_ms:g} ms and TPOT {slo.tpot_ms:g} ms" for slo in (first.slo, second.slo))
        yield f"warning: good means {' for the first, and '.join(limits)} for the second, so goodput cannot be compared"


def _compared(title: str, first: float, second: float) -> str:
    return f"{title:24}{first:18.2f}{second:18.2f}" + (f"{second / first:8.2f}" if first else f"{'-':>8}")
