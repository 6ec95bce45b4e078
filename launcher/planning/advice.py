"""The text of a plan: a table of the simulated deployments, the advised deployment, and what cheaper ones lack."""

from collections.abc import Iterator, Sequence

from launcher.planning.trial import SimulatedPlan
from pricing.planning.candidates import PlannedDeployment, headroom
from pricing.planning.load import PlannedLoad
from pricing.planning.roles import MAX_BATCH, RoleEstimate

INFINITE = float("inf")


def described(deployment: PlannedDeployment) -> str:
    """Returns a deployment in words, such as `2P of H100 x 2 + 1D of H100 x 4, fp8, KV fp8`."""
    first, second = deployment.prefill, deployment.decode
    if first is None:
        return f"{second.workers} unsplit of {second.copy.name}, {deployment.form}"
    if first.copy.name == second.copy.name:
        return f"{first.workers}P{second.workers}D of {second.copy.name}, {deployment.form}"
    return f"{first.workers}P of {first.copy.name} + {second.workers}D of {second.copy.name}, {deployment.form}"


def ranking(tried: Sequence[SimulatedPlan], load: PlannedLoad) -> Iterator[str]:
    """Yields a line for each simulated deployment: the cheapest good tokens first, missed objectives last."""
    width = max(len(described(each.deployment)) for each in tried)
    yield (
        f"{'deployment':{width}}{'$/h':>8}{'$/million':>11}{'good':>6}{'TTFT p90':>10}{'TPOT p90':>10}{'headroom':>10}"
        f"{'batch':>7}{'context':>9}  binds"
    )
    for each in ranked(tried):
        report, deployment = each.report, each.deployment
        cost = each.dollars_per_million
        yield (
            f"{described(deployment):{width}}{deployment.dollars_per_hour:8.2f}"
            f"{'-' if cost == INFINITE else f'{cost:.3f}':>11}{100 * report.good_share:5.0f}%"
            f"{report.ttft_ms.p90:7.0f} ms{report.tpot_ms.p90:7.1f} ms{100 * headroom(deployment, load):9.0f}%"
            f"{min(MAX_BATCH, deployment.decode.copy.largest_batch(load)):7}"
            f"{deployment.decode.copy.capacity.pool_tokens:9}  {_binds(deployment)}"
        )


def ranked(tried: Sequence[SimulatedPlan]) -> list[SimulatedPlan]:
    return sorted(tried, key=lambda each: (not each.passed, each.dollars_per_million))


def lacking(
    best: SimulatedPlan, tried: Sequence[SimulatedPlan], next_cheaper: PlannedDeployment | None, load: PlannedLoad
) -> Iterator[str]:
    """Yields what cheaper deployments lack: the dearest simulated one, and the advised one with one change."""
    dollars = best.deployment.dollars_per_hour
    missed = [each for each in tried if not each.passed and each.deployment.dollars_per_hour < dollars]
    if missed:
        nearest = max(missed, key=lambda each: each.deployment.dollars_per_hour)
        report = nearest.report
        counts = {"TTFT": report.missed.ttft, "TPOT": report.missed.tpot, "both limits": report.missed.both}
        most = max(counts, key=counts.__getitem__)
        yield (
            f"cheaper by simulation: {_with_cost(nearest.deployment)}: only {100 * report.good_share:.0f}% good, "
            f"{counts[most]} of {report.requests} miss {most}"
        )
    if next_cheaper is not None:
        yield f"cheaper by estimate: {_with_cost(next_cheaper)}: {_shortfall(next_cheaper, load)}"


def _with_cost(deployment: PlannedDeployment) -> str:
    return f"{described(deployment)}, ${deployment.dollars_per_hour:.2f}/h"


def _shortfall(deployment: PlannedDeployment, load: PlannedLoad) -> str:
    times = (("TTFT", deployment.ttft_s, load.ttft_s), ("TPOT", deployment.tpot_s, load.tpot_s))
    growing = [name for name, seconds, _ in times if seconds == INFINITE]
    found = [f"{' and '.join(growing)} would grow without bound"] if growing else []
    found += [
        f"{name} {1000 * seconds:.3g} ms, of {1000 * limit:g} ms"
        for name, seconds, limit in times
        if limit < seconds < INFINITE
    ]
    return f"{' and '.join(found)} ({_binds(deployment)})" if found else "it does, with no room for chance"


def _binds(deployment: PlannedDeployment) -> str:
    def of(name: str, role: RoleEstimate) -> str:
        return f"{name}: {role.binds}"

    if deployment.prefill is None:
        return deployment.decode.binds
    return f"{of('prefill', deployment.prefill)}; {of('decode', deployment.decode)}"
