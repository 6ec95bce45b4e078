"""Command lines of a planned deployment are taken by the commands themselves."""

import shlex

from infra.cli import parse
from launcher.containers.compose import ComposeConfig
from launcher.kubernetes.options import ManifestsConfig
from launcher.options import UpConfig
from launcher.planning.command_lines import command_lines
from pricing.planning.candidates import CopyFormat, PlannedDeployment
from pricing.planning.roles import decode, prefill
from tests.pricing.planning.figures import copy, load

DEMAND = load(8.0)


def test_up_compose_and_manifests_take_their_lines() -> None:
    planned = PlannedDeployment(CopyFormat("fp8", "int8"), decode(copy(4), 1, DEMAND), prefill(copy(2), 2, DEMAND))
    up, compose, variables, manifests = command_lines(planned, DEMAND, "org/70B")
    taken = parse(UpConfig, shlex.split(up)[2:], "baton up")
    assert (taken.prefill, taken.decode, taken.slo) == (2, 1, "ttft=1000ms,tpot=50ms")
    assert (taken.engine.prefill_tp, taken.engine.decode_tp, taken.engine.step_ms) == (2, 4, 25.0)
    assert (taken.engine.quantization, taken.engine.kv_dtype) == ("fp8", "int8")
    assert parse(ComposeConfig, shlex.split(compose.partition(">")[0])[2:], "baton compose").gpus == "8"
    assert "BATON_PREFILL=2 BATON_DECODE=1 BATON_PREFILL_TP=2 BATON_DECODE_TP=4 BATON_QUANTIZATION=fp8" in variables
    written = parse(ManifestsConfig, shlex.split(manifests.partition(">")[0])[2:], "baton manifests")
    assert (written.decode, written.engine.decode_tp, written.max_decode) == (1, 4, 0)


def test_more_devices_than_a_host_has_are_spread() -> None:
    planned = PlannedDeployment(CopyFormat("none", "auto"), decode(copy(8), 2, DEMAND))
    lines = list(command_lines(planned, DEMAND, "m"))
    assert any("--on ray" in line for line in lines) and not any("compose" in line for line in lines)
