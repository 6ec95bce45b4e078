"""The RayCluster, as KubeRay documents it: Ray's containers, and one beside the head's that deploys on the cluster."""

import kubernetes_validate
import pytest

from infra.cli import parse
from launcher.kubernetes.kuberay import GCS_PORT, HEAD, NODE, RAY_VERSION
from launcher.kubernetes.manifests import manifests
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.secrets import read_secrets
from launcher.options import ROOT, DeploymentOptions
from tests.launcher.kubernetes.written import Manifest, of_kind

ON_RAY = ("--on=", "--ray-address=", "--worker-cpus=", "--host=", "--port=", "--dashboard-port=")
"""Options of `baton up` that are about the cluster, and not about what is deployed."""


@pytest.fixture
def written() -> list[Manifest]:
    config = ManifestsConfig(
        model="a/b", prefill=3, decode=2, kuberay=True, workers_per_node=2, slo="ttft=1s", hf_token_secret="hub"
    )
    return manifests(config, read_secrets(config))


@pytest.fixture
def cluster(written: list[Manifest]) -> Manifest:
    return of_kind(written, "RayCluster")["baton-ray"]


def test_services_run_on_ray_and_redis_beside_it(written: list[Manifest]) -> None:
    kinds = [each["kind"] for each in written]
    assert "Deployment" not in kinds and "HorizontalPodAutoscaler" not in kinds
    assert kinds.count("RayCluster") == kinds.count("StatefulSet") == 1


def test_nodes_have_room_for_all_workers(cluster: Manifest) -> None:
    assert cluster["apiVersion"] == "ray.io/v1" and cluster["spec"]["rayVersion"] == RAY_VERSION
    (group,) = cluster["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3), "five workers, two a node"
    (node,) = group["template"]["spec"]["containers"]
    assert node["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert "command" not in node, "KubeRay gives it one"


def test_the_rays_version_is_the_one_that_is_installed() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ray=={RAY_VERSION}" in pins


def test_the_container_beside_the_heads_deploys_what_was_asked_for(cluster: Manifest) -> None:
    ray, driver = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert ray["name"] == HEAD and driver["command"] == ["python", "-m", "launcher", "up"]
    assert driver["args"][:2] == ["--on=ray", f"--ray-address=$(POD_IP):{GCS_PORT}"]
    told = parse(DeploymentOptions, [word for word in driver["args"] if not word.startswith(ON_RAY)], "baton up")
    assert (told.model, told.prefill, told.decode, told.device, told.slo) == ("a/b", 3, 2, "cuda", "ttft=1s")
    assert told.secret_file == "/etc/baton/secret/secret" and told.redis == "$(BATON_REDIS_URL)"
    for container in (ray, driver):
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/tmp", "/dev/shm"} <= mounted, "by which a driver reaches the raylet of its node"


def test_all_of_rays_pods_have_the_hubs_token(cluster: Manifest) -> None:
    templates = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for container in (one for each in templates for one in each["template"]["spec"]["containers"]):
        token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
        assert token in container["env"], container["name"]


def test_pods_keep_to_the_schemas(written: list[Manifest], cluster: Manifest) -> None:
    templates = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    pods = [{"apiVersion": "v1", "kind": "Pod", **each["template"]} for each in templates]
    for each in [*pods, *(one for one in written if one["kind"] != "RayCluster")]:
        kubernetes_validate.validate(each, "1.37", strict=True)


def test_only_rays_pods_reach_redis_and_everybody_the_endpoint(written: list[Manifest]) -> None:
    policies = of_kind(written, "NetworkPolicy")
    (rule,) = policies["baton-redis"]["spec"]["ingress"]
    parts = {one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in rule["from"]}
    assert parts == {HEAD, NODE}
    assert {"port": "http", "protocol": "TCP"} in policies[f"baton-{HEAD}"]["spec"]["ingress"][1]["ports"]
    service = of_kind(written, "Service")["baton-gateway"]
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == HEAD


def test_the_image_can_be_built_with_ray() -> None:
    assert "launcher.installing.requirements $EXTRAS" in (ROOT / "Dockerfile").read_text()
