"""Clients outside reach the gateways by an Ingress, an HTTPRoute, or the Service alone."""

from pathlib import Path

from tests.launcher.kubernetes.written import of_kind, variants, written


def test_an_ingress_leads_to_the_gateways_service(tmp_path: Path) -> None:
    made = written("hub", tmp_path)
    (ingress,) = of_kind(made, "Ingress").values()
    assert ingress["metadata"]["annotations"] == {"nginx.ingress.kubernetes.io/proxy-read-timeout": "600"}
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    service = of_kind(made, "Service")[path["backend"]["service"]["name"]]
    assert path["backend"]["service"]["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": [rule["host"]], "secretName": "llm-tls"}]


def test_a_route_leads_to_the_gateways_service_without_a_time_limit(tmp_path: Path) -> None:
    made = written("theirs", tmp_path)
    (route,) = of_kind(made, "HTTPRoute").values()
    assert route["spec"]["parentRefs"] == [{"name": "public", "namespace": "edge"}]
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    service = of_kind(made, "Service")[backend["name"]]
    assert backend["port"] in [port["port"] for port in service["spec"]["ports"]]
    assert service["spec"]["type"] == "NodePort" and rule["timeouts"]["request"] == "0s"


@variants
def test_one_way_at_most(variant: str, tmp_path: Path) -> None:
    made = written(variant, tmp_path)
    ways = [*of_kind(made, "Ingress"), *of_kind(made, "HTTPRoute")]
    assert len(ways) == (variant in ("hub", "theirs"))
