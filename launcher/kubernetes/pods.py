"""Makes the pod of a service: its container, what is mounted, what it may do, and where it may stand."""

from math import ceil

from launcher.container import MODELS, USER
from launcher.deployment import WORKERS, Role, Service, command
from launcher.kubernetes.names import labels, name_of, selector
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import KEYS, OWN_KEY, REDIS_URL, SECRET, TLS, WRITABLE, hub_token, needs_models, place_of
from launcher.kubernetes.probes import probes
from launcher.kubernetes.quantities import cores, size
from launcher.kubernetes.secrets import digest, secret_name
from launcher.yaml_text import Value

LEAVING_SECONDS = 5
"""From when a gateway is to end until it is told so: for so long others may still send it new connections."""
FRONT_CPUS, FRONT_MEMORY = 1.0, 2 << 30
"""What a gateway's process or the dashboard asks for, and may take of memory."""

LOCKED_DOWN: Value = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""What a container may do: nothing but compute, and write where something is mounted for that."""


def user(number: int) -> Value:
    """Returns what makes a pod run as a user without privileges, to whom its volumes belong."""
    return {
        "runAsNonRoot": True,
        "runAsUser": number,
        "runAsGroup": number,
        "fsGroup": number,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_template(config: ManifestsConfig, service: Service) -> Value:
    """Returns the template of a service's pods."""
    words = command(service, place_of(config, service))
    container: Value = {
        "name": service.role,
        "image": config.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(words[:3]),
        "args": list(words[3:]),
        "envFrom": [{"configMapRef": {"name": name_of(config, "settings")}}],
        "env": _environment(config, service),
        "ports": [{"name": port.name, "containerPort": port.number, "protocol": "TCP"} for port in service.ports],
        "resources": _resources(config, service),
        **probes(config, service),
        "securityContext": LOCKED_DOWN,
        "volumeMounts": _mounts(config, service),
    }
    leaving = LEAVING_SECONDS if service.role == "gateway" else 0
    if leaving:
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(leaving)]}}}
    spec: Value = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": leaving + ceil(service.grace),
        "securityContext": user(USER),
        "affinity": _affinity(config, service),
        "containers": [container],
        "volumes": _volumes(config, service),
    }
    if service.gpus:
        spec["tolerations"] = [{"key": config.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}]
    if config.image_pull_secret:
        spec["imagePullSecrets"] = [{"name": config.image_pull_secret}]
    annotations = {"baton/settings": digest(config)}
    return {"metadata": {"labels": labels(config, service.role), "annotations": annotations}, "spec": spec}


def _environment(config: ManifestsConfig, service: Service) -> list[Value]:
    url = {"secretKeyRef": {"name": secret_name(config), "key": "redis-url"}}
    made: list[Value] = [{"name": REDIS_URL, "valueFrom": url}]
    if "models" in service.keeps:
        made += hub_token(config)
    if service.role in WORKERS:
        for name, field in (("POD_IP", "status.podIP"), ("NODE_NAME", "spec.nodeName")):
            made.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}})
    return made


def _resources(config: ManifestsConfig, service: Service) -> Value:
    if service.role in WORKERS:
        cpus, memory = config.worker_cpus, config.worker_memory
    else:
        processes = config.gateways if service.role == "gateway" else 1
        cpus, memory = FRONT_CPUS * processes, FRONT_MEMORY * processes
    gpus: Value = {config.gpu_resource: service.gpus} if service.gpus else {}
    # No limit of cores: one that is reached stops all threads of a step for the rest of 100 ms.
    most = {"memory": size(memory), **gpus}
    return {"requests": {"cpu": cores(cpus), **most}, "limits": most}


def _held(config: ManifestsConfig, service: Service) -> dict[str, tuple[str, str]]:
    """Returns the Secrets that a service reads, by the name of their volume: the Secret, and where it is mounted."""
    held = {}
    if service.role != "dashboard":
        held["secret"] = (secret_name(config), SECRET)
    if service.role not in WORKERS:
        if config.api_keys:
            held["keys"] = (name_of(config, "keys"), KEYS)
        if config.tls_cert:
            held["tls"] = (name_of(config, "tls"), TLS)
    if service.role == "dashboard" and config.api_keys:
        held["own-key"] = (name_of(config, "own-key"), OWN_KEY)
    return held


def _has_models(config: ManifestsConfig, service: Service) -> bool:
    return "models" in service.keeps and needs_models(config)


def _mounts(config: ManifestsConfig, service: Service) -> list[Value]:
    made: list[Value] = [{"name": name, "mountPath": path} for name, path in WRITABLE.items()]
    made += [
        {"name": volume, "mountPath": path, "readOnly": True} for volume, (_, path) in _held(config, service).items()
    ]
    if _has_models(config, service):
        made.append({"name": "models", "mountPath": MODELS, "readOnly": config.model.startswith(f"{MODELS}/")})
    return made


def _volumes(config: ManifestsConfig, service: Service) -> list[Value]:
    made: list[Value] = [{"name": name, "emptyDir": {}} for name in WRITABLE]
    made += [
        # Of the files of the shared Secret, only the one that is read: the others are in the environment.
        {"name": volume, "secret": {"secretName": secret, "defaultMode": 0o440, **_only(volume)}}
        for volume, (secret, _) in _held(config, service).items()
    ]
    if _has_models(config, service):
        claim = config.models_claim or name_of(config, "models")
        made.append({"name": "models", "persistentVolumeClaim": {"claimName": claim}})
    return made


def _only(volume: str) -> Value:
    return {"items": [{"key": "secret", "path": "secret"}]} if volume == "secret" else {}


def _affinity(config: ManifestsConfig, service: Service) -> Value:
    """Keeps pods of one kind on several nodes, and workers of both kinds in one zone, where that is possible."""
    made: Value = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                _near(config, service.role, "kubernetes.io/hostname", weight=50)
            ]
        }
    }
    if service.role in WORKERS:
        zone = [_near(config, role, "topology.kubernetes.io/zone", weight=100) for role in WORKERS]
        made["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": zone}
    return made


def _near(config: ManifestsConfig, role: Role, topology: str, weight: int) -> Value:
    pods = {"labelSelector": {"matchLabels": selector(config, role)}, "topologyKey": topology}
    return {"weight": weight, "podAffinityTerm": pods}
