"""The first help text fits a screen, the other has every option, and each option says what its value is."""

import pytest
from msgspec import Struct

from infra.config.dashboard import DashboardConfig
from infra.config.gateway import GatewayConfig
from infra.config.operators import OperatorsConfig
from infra.config.worker import WorkerConfig
from infra.option_fields import option_fields
from infra.option_help import common_options, help_all, help_page
from launcher.bench.options import BenchConfig
from launcher.containers.compose import ComposeConfig
from launcher.kubernetes.options import ManifestsConfig
from launcher.options import ChatConfig, HostWorkersConfig, ShownConfig, StatusConfig, UnitConfig, UpConfig
from launcher.planning.options import PlanConfig
from launcher.simulating.options import SimulateConfig

SCREEN_LINES, SCREEN_COLUMNS = 40, 100
CONFIGS = [
    *(UpConfig, ShownConfig, UnitConfig, ManifestsConfig, HostWorkersConfig, WorkerConfig, GatewayConfig),
    *(DashboardConfig, OperatorsConfig, BenchConfig, ComposeConfig, ChatConfig, StatusConfig, PlanConfig),
    SimulateConfig,
]


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))


@pytest.mark.parametrize("config", [UpConfig, ShownConfig, UnitConfig, ManifestsConfig])
def test_the_common_options_fit_a_screen_and_come_first(config: type[Struct]) -> None:
    lines = help_page(config, "baton up", settings=True).splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    shown = [line.split()[0] for line in lines if line.startswith("  --")]
    assert shown == ["--" + name.replace("_", "-") for name in common_options(config)]
    assert "--help-all lists all" in " ".join(lines)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_option_is_listed_once_in_a_group(config: type[Struct]) -> None:
    lines = help_all(config, "baton", settings=False).splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  --")]
    assert sorted(shown) == sorted(field.option for field in option_fields(config))
    assert max(map(len, lines)) <= SCREEN_COLUMNS


@pytest.mark.parametrize("config", CONFIGS)
def test_every_text_says_of_what_kind_it_is(config: type[Struct]) -> None:
    assert [field.option for field in option_fields(config) if field.metavar == "TEXT"] == []


def test_metavars_come_from_types_and_units() -> None:
    named = {field.name: field.metavar for field in option_fields(UpConfig)}
    assert named["kv_memory"] == "SIZE" and named["prefill"] == "N" and named["port"] == "PORT"
    assert named["drain_seconds"] == "SECONDS" and named["redis"] == "URL" and named["lora_root"] == "DIR"
    assert named["block_size"] == "8|16|32|64" and named["tool_parser"] == "NAME"
    assert named["trust_remote_code"] == ""
