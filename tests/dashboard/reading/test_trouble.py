"""The banner appears when nothing can be served, says what would help, and is silent otherwise."""

import pytest

from dashboard.reading.source import Snapshot, WorkerView
from dashboard.reading.trouble import trouble, unloaded
from infra.redis.records import FinishedRecord, GatewayRecord
from infra.redis.worker_load import WorkerLoad
from pricing.scaling.standing import RoleStanding, Standing, WorkerStanding
from tests.dashboard.samples import finished, gateway, worker

NOW_S = 50_000.0


def view(role: str, state: str) -> WorkerView:
    return WorkerView(role[0], role, WorkerLoad(), state, 17.0, worker())  # type: ignore[arg-type]


def said(
    *views: WorkerView, gateways: tuple[GatewayRecord, ...] = (gateway(),), records: list[FinishedRecord] | None = None
) -> str:
    found = trouble(Snapshot(NOW_S, views, gateways, records or [], {}))
    return f"{found.what} {found.help}" if found is not None else ""


READY = (view("prefill", "ready"), view("decode", "ready"))
UNREACHED = Standing(decode=RoleStanding((WorkerStanding("d", usable=False),)))


def test_a_deployment_that_serves_has_no_banner() -> None:
    assert said(*READY) == said(view("decode", "ready")) == said(view("prefill", "ready")) == said() == ""
    refusals = [finished(outcome="refused", reason="no_workers", ended_at=NOW_S - 60)] * 9
    mixed = [*[finished(outcome="refused", ended_at=NOW_S)] * 9, finished(ended_at=NOW_S)]
    assert said(*READY, records=refusals) == said(*READY, records=mixed) == ""


@pytest.mark.parametrize(
    ("views", "gateways", "words"),
    [
        ((view("prefill", "silent"), view("decode", "silent")), (gateway(),), "no worker is ready. 2 of 2 workers"),
        ((view("decode", "draining"),), (gateway(),), "all workers are shut down"),
        ((view("prefill", "ready"), view("decode", "silent")), (gateway(),), "No decode worker is ready. 1 of 2"),
        (READY, (), "No gateway runs"),
        (READY, (gateway(standing=UNREACHED),), "a firewall"),
    ],
)
def test_each_reason_has_its_help(
    views: tuple[WorkerView, ...], gateways: tuple[GatewayRecord, ...], words: str
) -> None:
    assert words in said(*views, gateways=gateways)


def test_refusals_alone_are_trouble_too() -> None:
    late = [finished(outcome="refused", reason="objective_out_of_reach", ended_at=NOW_S - 1)] * 5
    assert "All 5 requests" in said(*READY, records=late) and "relax `--slo`" in said(*READY, records=late)


def test_an_unloaded_model_is_no_trouble() -> None:
    resting = Snapshot(NOW_S, (view("decode", "draining"),), (gateway(unloaded="unloaded"),), [], {})
    assert trouble(resting) is None and unloaded(resting).startswith("The model was idle and is unloaded")
    assert unloaded(Snapshot(NOW_S, READY, (gateway(),), [], {})) == ""
