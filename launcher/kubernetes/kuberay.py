"""Makes a RayCluster for KubeRay, on which `baton up --on ray` spreads the services, in place of pods of their own.

The command runs in the head's pod, in a container beside Ray's: it is a node of the cluster there, and is started again
if it ends; its gateway is in the same pod. It has no probe of readiness: nodes join by the head's Service, which may
leave a pod out that is not ready, and the gateway waits for workers on those nodes. A RayService would have Ray Serve
stand before the gateway, and take a cluster for unhealthy that serves no application of Serve's.
"""

from math import ceil

from msgspec.structs import fields

from infra.cli import words
from launcher.container import DEMO_WEIGHTS, MODELS, PYTHON, USER
from launcher.deployment import Port
from launcher.kubernetes.names import labels, metadata, name_of, selector
from launcher.kubernetes.network import DNS, hub
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import KEYS, OWN_KEY, REDIS_URL, SECRET, TLS, WRITABLE, hub_token, in_pods, needs_models
from launcher.kubernetes.pods import LEAVING_SECONDS, LOCKED_DOWN, user
from launcher.kubernetes.quantities import cores, size
from launcher.kubernetes.secrets import secret_name
from launcher.options import DEMO_MODEL, DeploymentOptions
from launcher.yaml_text import Value

RAY_VERSION = "2.60.0"
GCS_PORT = 6379  # at which nodes and drivers find a cluster
HEAD, NODE = "ray-head", "ray-node"
SHARED_MEMORY = "/dev/shm"  # in which Ray keeps objects; the containers of the head's pod share it, and `/tmp`
HEAD_CPUS, HEAD_MEMORY, SHARED_BYTES = 2.0, 8 << 30, 1 << 30
CLOSE_SECONDS = 60  # from the end of the drain until everything is taken down


def ray_cluster(config: ManifestsConfig) -> Value:
    """Makes the RayCluster: a head, and nodes that have room for all workers."""
    each = config.workers_per_node
    nodes = ceil(((config.prefill if config.prefill is not None else 1) + config.decode) / each)
    gpus: Value = {} if config.device == "cpu" else {config.gpu_resource: each}
    room = _room(config.worker_cpus * each, config.worker_memory * each + SHARED_BYTES, gpus)
    head = [_ray(config, HEAD, _room(HEAD_CPUS, HEAD_MEMORY, {}), _ports(config)), _driver(config)]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": metadata(config, "ray", "ray"),
        "spec": {
            "rayVersion": RAY_VERSION,
            "headGroupSpec": {
                "rayStartParams": {"dashboard-host": "0.0.0.0"},
                "template": _template(config, HEAD, head),
            },
            "workerGroupSpecs": [
                {
                    "groupName": "nodes",
                    "replicas": nodes,
                    "minReplicas": nodes,
                    "maxReplicas": nodes,
                    "rayStartParams": {},
                    "template": _template(config, NODE, [_ray(config, NODE, room, ())]),
                }
            ],
        },
    }


def driver_words(config: ManifestsConfig) -> list[str]:
    """Writes the command that deploys on the cluster: the gateway listens at the pod's own address, and stays there."""
    told = in_pods(config)
    options = {field.name: getattr(told, field.name) for field in fields(DeploymentOptions)}
    options |= {
        "model": DEMO_WEIGHTS if config.model == DEMO_MODEL else config.model,
        "redis": f"$({REDIS_URL})",
        "secret_file": f"{SECRET}/secret",
    }
    address = f"$(POD_IP):{GCS_PORT}"
    place = ["--on=ray", f"--ray-address={address}", f"--worker-cpus={config.worker_cpus:g}", "--host=$(POD_IP)"]
    place += [f"--port={config.port}", f"--dashboard-port={config.dashboard_port}"]
    return [*PYTHON, "-m", "launcher", "up", *place, *words(DeploymentOptions(**options))]


def gateway_service(config: ManifestsConfig) -> Value:
    """Makes the Service of the gateway, and of the dashboard, in the head's pod."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(config, "gateway", "gateway"),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(config, HEAD),
            "ports": [
                {"name": port.name, "port": port.number, "targetPort": port.name, "protocol": "TCP"}
                for port in _ports(config)
            ],
        },
    }


def ray_policies(config: ManifestsConfig) -> list[Value]:
    """Makes the policies of Ray's pods: all ports for each other, the endpoint for everybody."""
    ours = [{"podSelector": {"matchLabels": selector(config, part)}} for part in (HEAD, NODE)]
    redis = {"podSelector": {"matchLabels": selector(config, "redis")}}
    made = []
    for part in (HEAD, NODE):
        ingress: list[Value] = [{"from": ours}]
        if part == HEAD:
            ingress.append({"ports": [{"port": "http", "protocol": "TCP"}]})
        egress: list[Value] = [DNS, {"to": [*ours, redis]}, *hub(config)]
        made.append(
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": metadata(config, part, part),
                "spec": {
                    "podSelector": {"matchLabels": selector(config, part)},
                    "policyTypes": ["Ingress", "Egress"],
                    "ingress": ingress,
                    "egress": egress,
                },
            }
        )
    return made


def _ports(config: ManifestsConfig) -> tuple[Port, ...]:
    found = (Port("http", config.port), Port("dashboard", config.dashboard_port))
    return found if config.dashboard_port else found[:1]


def _room(cpus: float, memory: int, gpus: Value) -> Value:
    most = {"memory": size(memory), **gpus}
    return {"requests": {"cpu": cores(cpus), **most}, "limits": most}


def _ray(config: ManifestsConfig, name: str, resources: Value, ports: tuple[Port, ...]) -> Value:
    """Makes the container that Ray runs in; KubeRay gives it its command and its probes."""
    return {
        "name": name,
        "image": config.image,
        "imagePullPolicy": "IfNotPresent",
        "envFrom": [{"configMapRef": {"name": name_of(config, "settings")}}],
        "env": hub_token(config),
        "ports": [{"name": port.name, "containerPort": port.number, "protocol": "TCP"} for port in ports],
        "resources": resources,
        "securityContext": LOCKED_DOWN,
        "volumeMounts": _mounts(config, name),
    }


def _driver(config: ManifestsConfig) -> Value:
    written = driver_words(config)
    url = {"secretKeyRef": {"name": secret_name(config), "key": "redis-url"}}
    return {
        "name": "baton",
        "image": config.image,
        "imagePullPolicy": "IfNotPresent",
        "command": written[:4],
        "args": written[4:],
        "envFrom": [{"configMapRef": {"name": name_of(config, "settings")}}],
        "env": [
            {"name": REDIS_URL, "valueFrom": url},
            *hub_token(config),
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "resources": _room(0.5, 1 << 30, {}),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVING_SECONDS)]}}},
        "securityContext": LOCKED_DOWN,
        "volumeMounts": _mounts(config, HEAD),
    }


def _template(config: ManifestsConfig, part: str, containers: list[Value]) -> Value:
    spec: Value = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": LEAVING_SECONDS + ceil(config.drain_seconds) + CLOSE_SECONDS,
        "securityContext": user(USER),
        "containers": containers,
        "volumes": _volumes(config, part),
    }
    if config.image_pull_secret:
        spec["imagePullSecrets"] = [{"name": config.image_pull_secret}]
    if part == NODE and config.device != "cpu":
        spec["tolerations"] = [{"key": config.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}]
    return {"metadata": {"labels": labels(config, part)}, "spec": spec}


def _held(config: ManifestsConfig, part: str) -> dict[str, tuple[str, str]]:
    """Returns the Secrets that the head reads, which gives the nodes what they need of them."""
    if part != HEAD:
        return {}
    held = {"secret": (secret_name(config), SECRET)}
    if config.api_keys:
        held |= {"keys": (name_of(config, "keys"), KEYS), "own-key": (name_of(config, "own-key"), OWN_KEY)}
    return {**held, "tls": (name_of(config, "tls"), TLS)} if config.tls_cert else held


def _mounts(config: ManifestsConfig, part: str) -> list[Value]:
    made: list[Value] = [{"name": name, "mountPath": path} for name, path in WRITABLE.items()]
    made.append({"name": "shared-memory", "mountPath": SHARED_MEMORY})
    made += [{"name": name, "mountPath": path, "readOnly": True} for name, (_, path) in _held(config, part).items()]
    if needs_models(config):
        made.append({"name": "models", "mountPath": MODELS, "readOnly": config.model.startswith(f"{MODELS}/")})
    return made


def _volumes(config: ManifestsConfig, part: str) -> list[Value]:
    made: list[Value] = [{"name": name, "emptyDir": {}} for name in WRITABLE]
    made.append({"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": size(SHARED_BYTES)}})
    made += [
        {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}
        for name, (secret, _) in _held(config, part).items()
    ]
    if needs_models(config):
        claim = config.models_claim or name_of(config, "models")
        made.append({"name": "models", "persistentVolumeClaim": {"claimName": claim}})
    return made
