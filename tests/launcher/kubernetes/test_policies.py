"""What operators demand of manifests, tested as data."""

import re
from math import ceil
from pathlib import Path

from infra.cli import parse
from infra.config.dashboard import DashboardConfig
from infra.config.gateway import GatewayConfig
from infra.config.worker import WorkerConfig
from infra.keys.key_ring import KeyRing
from infra.network.ports import parse_ports
from launcher.deployment import CLOSE_S, placed
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import locations, pods_deployment
from tests.launcher.kubernetes.written import VARIANTS, Manifest, of_kind, options, pod_specs, variants, written

REACHED_BY = {
    "redis": {"redis": {"prefill", "decode", "gateway", "dashboard"}},
    "prefill": {"gateways": {"gateway"}},
    "decode": {"gateways": {"gateway"}, "handoffs": {"prefill"}, "kv": {"prefill"}},
}
"""Who may come to each port: written by hand, not taken from what writes the policies."""

ASKS: dict[str, set[str]] = {
    "redis": set(),
    "prefill": {"redis", "decode"},
    "decode": {"redis"},
    "gateway": {"redis", "prefill", "decode"},
    "dashboard": {"redis", "gateway"},
}
"""Whom each service may leave for, likewise."""

LEAVING_SECONDS = 5
"""From when a gateway's pod is to go until its process is told: endpoints of Services are removed in that time."""


def containers(variant: str, directory: Path) -> list[Manifest]:
    return [each for _, spec in pod_specs(written(variant, directory)) for each in spec["containers"]]


@variants
def test_nobody_has_privileges(variant: str, tmp_path: Path) -> None:
    for _, spec in pod_specs(written(variant, tmp_path)):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert spec["automountServiceAccountToken"] is False
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"] is True and pod["runAsUser"] > 0 and pod["fsGroup"] == pod["runAsGroup"]
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert not any("hostPath" in volume for volume in spec.get("volumes", ()))


@variants
def test_images_have_a_version(variant: str, tmp_path: Path) -> None:
    for container in containers(variant, tmp_path):
        assert re.search(r":[0-9][\w.]*$", container["image"]), container["image"]


@variants
def test_every_port_is_named_and_every_probe_asks_a_named_one(variant: str, tmp_path: Path) -> None:
    made = written(variant, tmp_path)
    named = {}
    for name, spec in pod_specs(made):
        (container,) = spec["containers"]
        named[name] = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert len(named[name]) == len(container["ports"]) > 0
        assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?", port) for port in named[name])
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[kind].get("httpGet") or container[kind].get("tcpSocket")
            assert "exec" in container[kind] or asked["port"] in named[name]
    services = of_kind(made, "Service")
    assert services.keys() == named.keys()
    for name, service in services.items():
        assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == named[name]


@variants
def test_services_are_told_what_the_description_says(variant: str, tmp_path: Path) -> None:
    """Each command line is one that its service reads as the description means it."""
    config = options(variant, tmp_path)
    made = {name: spec["containers"][0] for name, spec in pod_specs(written(variant, tmp_path))}
    for service in pods_deployment(config).services:
        if service.settings is None:
            continue
        container = made[f"{config.name}-{service.role}"]
        assert container["command"] == ["python", "-m", service.module]
        told = parse(type(service.settings), container["args"], service.role)
        assert told == placed(service.settings, locations(config, service))
        ports = [port["containerPort"] for port in container["ports"]]
        if isinstance(told, WorkerConfig):
            assert list(parse_ports(told.place.ports)) == ports
        else:
            assert ports == [told.port]


@variants
def test_the_grace_is_longer_than_what_drains_in_it(variant: str, tmp_path: Path) -> None:
    for name, spec in pod_specs(written(variant, tmp_path)):
        (container,) = spec["containers"]
        leaving = LEAVING_SECONDS if name.endswith("-gateway") else 0
        if leaving:
            assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(leaving)]
        drain = next((float(word.split("=")[1]) for word in container["args"] if word.startswith("--drain")), 0.0)
        assert drain or name.endswith(("-redis", "-dashboard"))
        assert spec["terminationGracePeriodSeconds"] >= leaving + ceil(drain + CLOSE_S)


@variants
def test_files_that_are_written_lie_where_something_is_mounted(variant: str, tmp_path: Path) -> None:
    for _, spec in pod_specs(written(variant, tmp_path)):
        (container,) = spec["containers"]
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        for word in container["args"]:
            if word.startswith("--status-file="):
                assert any(word.partition("=")[2].startswith(f"{path}/") for path in writable)
        claims = {claim["metadata"]["name"] for claim in spec.get("volumes", ()) if "metadata" in claim}
        volumes = {volume["name"] for volume in spec.get("volumes", ())} | claims
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes | {"data"}


@variants
def test_what_is_named_is_there(variant: str, tmp_path: Path) -> None:
    """Secrets, ConfigMaps, claims and the targets of autoscalers and budgets; but for what the user says is theirs."""
    config, made = options(variant, tmp_path), written(variant, tmp_path)
    secrets, maps = of_kind(made, "Secret"), of_kind(made, "ConfigMap")
    theirs = {config.existing_secret, config.models_claim, config.hf_token_secret.partition(":")[0]}
    for _, spec in pod_specs(made):
        (container,) = spec["containers"]
        for source in container.get("envFrom", ()):
            assert source["configMapRef"]["name"] in maps
        for entry in container["env"]:
            if key := entry["valueFrom"].get("secretKeyRef"):
                assert key["name"] in theirs or key["key"] in secrets[key["name"]]["stringData"]
        for volume in spec.get("volumes", ()):
            if "secret" in volume:
                assert volume["secret"]["secretName"] in {*secrets, *theirs}
            if "persistentVolumeClaim" in volume:
                claims = of_kind(made, "PersistentVolumeClaim")
                assert volume["persistentVolumeClaim"]["claimName"] in {*claims, *theirs}
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in made if "template" in each.get("spec", {})]
    for each in made:
        if each["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment", "StatefulSet"):
            wanted = each["spec"].get("selector") or each["spec"]["podSelector"]
            wanted = wanted.get("matchLabels", wanted)
            assert sum(wanted.items() <= pod.items() for pod in labels) == 1, each["metadata"]["name"]


@variants
def test_every_pod_is_behind_a_policy_for_both_ways(variant: str, tmp_path: Path) -> None:
    made = written(variant, tmp_path)
    policies = of_kind(made, "NetworkPolicy")
    assert policies.keys() == {name for name, _ in pod_specs(made)}
    assert all(policy["spec"]["policyTypes"] == ["Ingress", "Egress"] for policy in policies.values())


@variants
def test_workers_and_redis_are_reached_by_ours_only(variant: str, tmp_path: Path) -> None:
    config, made = options(variant, tmp_path), written(variant, tmp_path)
    policies = of_kind(made, "NetworkPolicy")
    for role in [service.role for service in pods_deployment(config).services]:
        ingress = policies[f"{config.name}-{role}"]["spec"]["ingress"]
        if role in REACHED_BY:
            assert {rule["ports"][0]["port"]: components(config, rule["from"]) for rule in ingress} == REACHED_BY[role]
            assert all(len(rule["ports"]) == 1 for rule in ingress)
        if role == "dashboard":
            assert bool(ingress) == bool(config.api_keys)


@variants
def test_services_leave_for_those_that_they_ask_only(variant: str, tmp_path: Path) -> None:
    config, made = options(variant, tmp_path), written(variant, tmp_path)
    policies = of_kind(made, "NetworkPolicy")
    for role in [service.role for service in pods_deployment(config).services]:
        egress = policies[f"{config.name}-{role}"]["spec"]["egress"]
        if variant == "cluster":  # whose Redis nodes may have any address
            assert egress == [{}]
        else:
            asked = [components(config, rule["to"]) for rule in egress if "to" in rule]
            assert asked == ([ASKS[role]] if ASKS[role] else []), role


def components(config: ManifestsConfig, sources: list[Manifest]) -> set[str]:
    """The services of this deployment that the rules of a policy name."""
    labels = [source["podSelector"]["matchLabels"] for source in sources]
    assert sources and all(each["app.kubernetes.io/instance"] == config.name for each in labels)
    return {each["app.kubernetes.io/component"] for each in labels}


def test_the_secret_is_a_file_and_no_word_of_a_command(tmp_path: Path) -> None:
    for variant in ("demo", "secured", "theirs"):
        made = written(variant, tmp_path)
        held = {text for each in of_kind(made, "Secret").values() for text in each["stringData"].values()}
        held.add("their-password")
        for each in made:
            if each["kind"] != "Secret":
                assert not [text for text in held if text in str(each)], each["metadata"]["name"]


def test_whoever_downloads_has_the_hubs_token_from_a_secret(tmp_path: Path) -> None:
    named = {"hub": {"name": "hub", "key": "token"}, "theirs": {"name": "hub", "key": "the-token"}}
    for variant in VARIANTS:
        for name, spec in pod_specs(written(variant, tmp_path)):
            (container,) = spec["containers"]
            found = [entry["valueFrom"] for entry in container["env"] if entry["name"] == "HF_TOKEN"]
            downloads = variant in named and name.endswith(("-prefill", "-decode", "-gateway"))
            assert found == ([{"secretKeyRef": named[variant]}] if downloads else []), name
    made = written("theirs", tmp_path)
    assert of_kind(made, "ConfigMap")["baton-settings"]["data"]["HF_ENDPOINT"] == "https://hub.example:8443"
    egress = of_kind(made, "NetworkPolicy")["baton-decode"]["spec"]["egress"]
    assert {"ports": [{"port": 8443, "protocol": "TCP"}]} in egress


@variants
def test_redis_refuses_before_its_container_is_killed(variant: str, tmp_path: Path) -> None:
    """While it writes its file anew, a forked copy may hold as much as the server itself."""
    for name, spec in pod_specs(written(variant, tmp_path)):
        if name.endswith("-redis"):
            (container,) = spec["containers"]
            args = container["args"]
            bound = int(args[args.index("--maxmemory") + 1])
            assert args[args.index("--maxmemory-policy") + 1] == "noeviction"
            limit = container["resources"]["limits"]["memory"]
            assert 2 * bound <= int(limit[:-2]) << {"Mi": 20, "Gi": 30}[limit[-2:]]
            stored = options(variant, tmp_path).store_bytes
            assert bound >= stored + (256 << 20), "responses that are stored leave room for jobs"


def test_keys_of_the_secret_are_those_that_the_gateway_asks_for(tmp_path: Path) -> None:
    made = written("secured", tmp_path)
    mounted = of_kind(made, "Secret")["baton-keys"]["stringData"]
    specs = dict(pod_specs(made))
    (gateway,), (dashboard,) = (specs[f"baton-{role}"]["containers"] for role in ("gateway", "dashboard"))
    told = parse(GatewayConfig, gateway["args"], "gateway")
    assert [Path(path).name for path in told.api_keys] == list(mounted)
    files = []
    for name, text in mounted.items():
        (tmp_path / name).write_text(text)
        files.append(str(tmp_path / name))
    own = of_kind(made, "Secret")["baton-own-key"]["stringData"]["api-key"]
    record = KeyRing(files).find(own)
    assert record is not None and record.operator
    assert parse(DashboardConfig, dashboard["args"], "dashboard").api_key_file == "/etc/baton/own-key/api-key"


@variants
def test_only_gpu_workers_ask_for_gpus_and_a_worker_gives_way_before_it_is_replaced(
    variant: str, tmp_path: Path
) -> None:
    config = options(variant, tmp_path)
    for name, each in of_kind(written(variant, tmp_path), "Deployment").items():
        (container,) = each["spec"]["template"]["spec"]["containers"]
        worker = name.endswith(("-prefill", "-decode")) and config.device != "cpu"
        limits = container["resources"]["limits"]
        assert limits.get("nvidia.com/gpu") == (1 if worker else None)
        assert container["resources"]["requests"].get("nvidia.com/gpu") == limits.get("nvidia.com/gpu")
        surge = config.worker_surge if worker else 1
        strategy = each["spec"]["strategy"]["rollingUpdate"]
        assert strategy == {"maxSurge": surge, "maxUnavailable": 0 if surge else 1}
