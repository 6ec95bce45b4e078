"""The ServiceMonitor, as Prometheus' operator documents it, finds the gateways' Service and asks as it has to.

Beside it: the alert rules and the board, where the operator and Grafana's sidecar look for them.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from launcher.options import MONITORING_DIRECTORY
from tests.launcher.kubernetes.written import of_kind, written


def test_it_finds_the_gateways_and_asks_with_the_deployments_own_key(tmp_path: Path) -> None:
    made = written("secured", tmp_path)
    monitor = of_kind(made, "ServiceMonitor")["baton-gateway"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    service = of_kind(made, "Service")["baton-gateway"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert (endpoint["path"], endpoint["scheme"]) == ("/metrics", "https")
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["key"] in of_kind(made, "Secret")[credentials["name"]]["stringData"]
    certificate = endpoint["tlsConfig"]["ca"]["secret"]
    assert certificate["key"] in of_kind(made, "Secret")[certificate["name"]]["stringData"]


def test_without_keys_it_asks_without(tmp_path: Path) -> None:
    (monitor,) = of_kind(written("hub", tmp_path), "ServiceMonitor").values()
    assert set(monitor["spec"]["endpoints"][0]) == {"port", "path", "interval"}
    assert of_kind(written("demo", tmp_path), "ServiceMonitor") == {}


def test_it_has_the_label_by_which_an_operator_looks_for_it(tmp_path: Path) -> None:
    (monitor,) = of_kind(written("hub", tmp_path), "ServiceMonitor").values()
    assert monitor["metadata"]["labels"]["release"] == "metrics"
    (own,) = of_kind(written("secured", tmp_path), "ServiceMonitor").values()
    assert "release" not in own["metadata"]["labels"]


def test_the_board_and_the_alert_rules_are_those_of_the_files(tmp_path: Path) -> None:
    made = written("hub", tmp_path)
    (rules,) = of_kind(made, "PrometheusRule").values()
    assert rules["metadata"]["labels"]["release"] == "metrics"
    assert rules["spec"] == yaml.safe_load((MONITORING_DIRECTORY / "alerts.yaml").read_text())
    board = of_kind(made, "ConfigMap")["qwen-board"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["baton.json"])["uid"] == "baton"
    assert of_kind(written("demo", tmp_path), "PrometheusRule") == {}


@pytest.mark.skipif(shutil.which("promtool") is None and "CI" not in os.environ, reason="no promtool on the PATH")
def test_prometheus_takes_the_rules_as_the_operator_hands_them_on(tmp_path: Path) -> None:
    (rules,) = of_kind(written("secured", tmp_path), "PrometheusRule").values()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules["spec"]))
    done = subprocess.run(["promtool", "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True)
    assert done.returncode == 0 and "12 rules found" in done.stdout, done.stdout + done.stderr
