"""Scales by fixed thresholds: what the policy is compared with."""

from contracts.slo import SLO
from launcher.autoscale.policy import ScalingChange, ScalingInput, cheapest
from launcher.autoscale.rules import Rules

SHRINK_BELOW_SHARE = 0.8
"""Share of the objective below which a worker goes."""


class Thresholds:
    """Compares present figures with fixed shares of the objective, without waits between changes.

    A worker is added above the objective and removed below `SHRINK_BELOW_SHARE` of it, as a peer did before it
    predicted the effect of one worker fewer (ai-dynamo/dynamo, pull 9294). Workers that start or drain are waited for.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def look(self, seen: ScalingInput, now: float) -> ScalingChange | None:
        assert seen.standing is not None
        found = {"prefill": seen.standing.prefill, "decode": seen.standing.decode}
        if any(len(stands.serving) != seen.wanted[role] for role, stands in found.items()):
            return None
        for role, stands in found.items():
            count, bounds = seen.wanted[role], self._rules.bounds[role]
            figure = _share(self._rules.slo, stands.ttft(count) if role == "prefill" else stands.tpot(count), role)
            if figure > 1 and count < bounds.most:
                return ScalingChange(role, 1, "", "")
            if figure < SHRINK_BELOW_SHARE and count > bounds.least:
                return ScalingChange(role, -1, cheapest(stands.serving), "")
        return None


def _share(slo: SLO, seconds: float | None, role: str) -> float:
    limit = slo.ttft_ms if role == "prefill" else slo.tpot_ms
    return 1000 * (seconds or 0.0) / limit
