"""Metrics of each role's workers together: the figures that autoscalers use."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pricing.scaling.standing import RoleStanding, Standing

_ROLE_LABELS = ["model_name", "role"]
_Figure = tuple[str, str, Callable[[RoleStanding], float | None]]


class _RoleFigures(Collector):
    def __init__(self, model: str, source: "RoleMetrics", figures: list[_Figure]) -> None:
        self._model = model
        self._source = source
        self._figures = figures

    def collect(self) -> Iterator[GaugeMetricFamily]:
        standing = self._source.standing
        for name, text, of_role in self._figures:
            family = GaugeMetricFamily(name, text, labels=_ROLE_LABELS)
            for role, stands in (("prefill", standing.prefill), ("decode", standing.decode)):
                if (value := of_role(stands)) is not None:
                    family.add_metric([self._model, role], value)
            yield family


class RoleMetrics:
    """Collectors of the last `standing`: `own` of what only this gateway knows, `of_workers` of the other figures."""

    def __init__(self, model: str) -> None:
        self.standing = Standing()
        self.own = _RoleFigures(model, self, _GATEWAY_FIGURES)
        self.of_workers = _RoleFigures(model, self, _WORKER_FIGURES)


_GATEWAY_FIGURES: list[_Figure] = [
    ("baton:prompt_busy_workers", "Workers that the arriving prompts would keep busy", lambda role: role.work),
    ("baton:waiting_prompt_tokens", "Tokens of prompts that wait at this gateway", lambda role: role.waiting_tokens),
]
_WORKER_FIGURES: list[_Figure] = [
    ("baton:serving_workers", "Workers that take requests", lambda role: len(role.serving)),
    (
        "baton:predicted_ttft_seconds",
        "Predicted time to first token of a usual prompt that arrives now",
        lambda role: role.ttft(len(role.serving)),
    ),
    (
        "baton:predicted_tpot_seconds",
        "Predicted time per output token with one more sequence",
        lambda role: role.tpot(len(role.serving)),
    ),
    ("baton:queued_prefill_tokens", "Prompt tokens that workers have yet to compute", lambda role: role.queued_tokens),
    ("baton:used_blocks_ratio", "Share of KV blocks that are not free, 0 to 1", lambda role: 1 - role.free_blocks),
]
