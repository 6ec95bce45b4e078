"""The ServiceMonitor, as Prometheus' operator documents it, finds the gateways' Service and asks as it has to."""

from pathlib import Path

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
