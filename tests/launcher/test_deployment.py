"""The description of a deployment: who is in it, what each is told and needs, and the order of start and stop."""

import sys

import pytest
from msgspec.structs import replace

from infra.cli import parse
from infra.config.dashboard import DashboardConfig
from infra.config.gateway import GatewayConfig
from infra.config.place import PlaceOptions
from infra.config.worker import WorkerConfig
from launcher.deployment import CLOSE_S, START_ORDER, STOP_ORDER, Deployment, Locations, command, describe
from launcher.options import DeploymentOptions


def described(**options: object) -> Deployment:
    asked = DeploymentOptions(**{"model": "m", "prefill": 2, "decode": 3, **options})  # type: ignore[arg-type]
    return describe(asked, host="0.0.0.0", port=8000, dashboard_port=8501)


def test_every_service_starts_once_and_stops_once() -> None:
    roles = [service.role for service in described().services]
    assert roles == ["redis", "prefill", "decode", "gateway", "dashboard"]
    for order in (START_ORDER, STOP_ORDER):
        assert sorted(role for group in order for role in group) == sorted(roles)
    assert described().stop_order() == [
        ["gateway"],
        ["prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2", "dashboard"],
        ["redis"],
    ]


@pytest.mark.parametrize(
    ("options", "missing"),
    [({"prefill": 0}, "prefill"), ({"redis": "redis://there"}, "redis")],
)
def test_what_is_not_wanted_is_not_there(options: dict[str, object], missing: str) -> None:
    assert missing not in [service.role for service in described(**options).services]


def test_only_workers_take_gpus_and_only_where_there_are_any() -> None:
    assert {service.role for service in described().services if service.gpus} == {"prefill", "decode"}
    assert not any(service.gpus for service in described(device="cpu").services)


def test_the_grace_is_longer_than_the_drain() -> None:
    for service in described(drain_seconds=33.0).services:
        drains = isinstance(service.settings, WorkerConfig | GatewayConfig)
        assert service.grace == (33.0 if drains else 0.0) + CLOSE_S


def test_a_command_says_where_things_are_and_what_is_not_the_default() -> None:
    there = PlaceOptions(host="10.0.0.7", announce="seven", ports="20000-20002")
    place = Locations(redis="redis://r", model="/there", secret_file="/s", status_file="/f", worker=there)
    (worker,) = described().of("decode")
    words = command(worker, replace(place, device="cuda:1", gpu_share=0.45))
    assert words[:4] == (sys.executable, "-P", "-m", "decode_service")
    assert "--block-size" not in words
    told = parse(WorkerConfig, words[4:], "decode")
    assert (told.engine.model, told.engine.device, told.engine.gpu_memory_utilization) == ("/there", "cuda:1", 0.45)
    assert (told.store.redis, told.store.secret_file, told.status_file) == ("redis://r", "/s", "/f")
    assert told.place == there


def test_a_deployments_own_key_is_known_to_the_gateway_and_used_by_the_dashboard() -> None:
    place = Locations(redis="redis://r", gateway="http://g:1", operator_keys_file="/own", operator_key_file="/key")
    asked = described(api_keys=("/theirs",))
    (gateway,), (dashboard,) = asked.of("gateway"), asked.of("dashboard")
    assert parse(GatewayConfig, command(gateway, place)[4:], "gateway").api_keys == ("/theirs", "/own")
    told = parse(DashboardConfig, command(dashboard, place)[4:], "dashboard")
    assert (told.api_keys, told.api_key_file, told.gateway) == (("/theirs",), "/key", "http://g:1")
