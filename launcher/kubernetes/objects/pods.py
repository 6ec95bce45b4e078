"""Makes the pod of a service: container, volumes, privileges and placement."""

from math import ceil

from launcher.containers.container import MODELS_DIRECTORY, RANKS_SHARED_MEMORY, USER_ID
from launcher.containers.yaml_text import Value
from launcher.deployment import WORKERS, Role, Service, command
from launcher.kubernetes.names import labels, name_of, selector
from launcher.kubernetes.objects.probes import probes
from launcher.kubernetes.objects.secrets import digest, secret_name
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import (
    KEYS_DIRECTORY,
    OPERATOR_KEY_DIRECTORY,
    REDIS_URL,
    SECRET_DIRECTORY,
    TLS_DIRECTORY,
    WRITABLE_DIRECTORIES,
    hub_token,
    locations,
    needs_models,
)
from launcher.kubernetes.quantities import cores, size

PRE_STOP_S = 5
"""Seconds from the removal of a gateway pod until its SIGTERM; proxies may still send new connections during them."""
SERVICE_CPUS, SERVICE_MEMORY_BYTES = 1.0, 2 << 30
"""Cores and bytes of memory for each gateway process, and for the dashboard."""

RESTRICTED_CONTEXT: Value = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""securityContext of every container: no privileges, and writes only to mounted volumes."""


def run_as(number: int) -> Value:
    """Returns the securityContext of a pod that runs as an unprivileged user, who owns the pod's volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": number,
        "runAsGroup": number,
        "fsGroup": number,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_template(config: ManifestsConfig, service: Service) -> Value:
    words = command(service, locations(config, service))
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
        "securityContext": RESTRICTED_CONTEXT,
        "volumeMounts": _mounts(config, service),
    }
    pre_stop = PRE_STOP_S if service.role == "gateway" else 0
    if pre_stop:
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", str(pre_stop)]}}}
    spec: Value = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": pre_stop + ceil(service.grace),
        "securityContext": run_as(USER_ID),
        "affinity": _affinity(config, service),
        "containers": [container],
        "volumes": _volumes(config, service),
    }
    if config.placement.priority_class:
        spec["priorityClassName"] = config.placement.priority_class
    if service.role in WORKERS and config.placement.node_selector:
        spec["nodeSelector"] = dict(label.split("=", 1) for label in config.placement.node_selector)
    if service.role in WORKERS and config.placement.runtime_class:
        spec["runtimeClassName"] = config.placement.runtime_class
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
        cpus, memory = SERVICE_CPUS * processes, SERVICE_MEMORY_BYTES * processes
    gpus: Value = {config.gpu_resource: service.gpus} if service.gpus else {}
    # No limit on cores: reaching a limit would stop all threads of a step for the rest of a 100 ms period.
    limits = {"memory": size(memory), **gpus}
    return {"requests": {"cpu": cores(cpus), **limits}, "limits": limits}


def _mounted_secrets(config: ManifestsConfig, service: Service) -> dict[str, tuple[str, str]]:
    """Returns volume → name of a Secret, and the directory at which its files appear."""
    mounted = {}
    if service.role != "dashboard":
        mounted["secret"] = (secret_name(config), SECRET_DIRECTORY)
    if service.role not in WORKERS:
        if config.api_keys:
            mounted["keys"] = (name_of(config, "keys"), KEYS_DIRECTORY)
        if config.tls_cert:
            mounted["tls"] = (name_of(config, "tls"), TLS_DIRECTORY)
    if service.role == "dashboard" and config.api_keys:
        mounted["own-key"] = (name_of(config, "own-key"), OPERATOR_KEY_DIRECTORY)
    return mounted


def _has_models(config: ManifestsConfig, service: Service) -> bool:
    return "models" in service.keeps and needs_models(config)


def _mounts(config: ManifestsConfig, service: Service) -> list[Value]:
    made: list[Value] = [{"name": name, "mountPath": path} for name, path in WRITABLE_DIRECTORIES.items()]
    if service.gpus > 1:
        made.append({"name": "shm", "mountPath": "/dev/shm"})
    made += [
        {"name": volume, "mountPath": path, "readOnly": True}
        for volume, (_, path) in _mounted_secrets(config, service).items()
    ]
    if _has_models(config, service):
        made.append(
            {
                "name": "models",
                "mountPath": MODELS_DIRECTORY,
                "readOnly": config.model.startswith(f"{MODELS_DIRECTORY}/"),
            }
        )
    return made


def _volumes(config: ManifestsConfig, service: Service) -> list[Value]:
    bound = {"sizeLimit": size(config.placement.scratch_size)}
    made: list[Value] = [{"name": name, "emptyDir": bound} for name in WRITABLE_DIRECTORIES]
    if service.gpus > 1:
        made.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size(RANKS_SHARED_MEMORY)}})
    made += [
        {"name": volume, "secret": {"secretName": secret, "defaultMode": 0o440, **_mounted_files(volume)}}
        for volume, (secret, _) in _mounted_secrets(config, service).items()
    ]
    if _has_models(config, service) and config.models_access == "pod":
        made.append({"name": "models", "emptyDir": {"sizeLimit": size(config.models_size)}})
    elif _has_models(config, service):
        claim = config.models_claim or name_of(config, "models")
        made.append({"name": "models", "persistentVolumeClaim": {"claimName": claim}})
    return made


def _mounted_files(volume: str) -> Value:
    """Limits the shared Secret's volume to the file `secret`: its other entries are environment variables."""
    return {"items": [{"key": "secret", "path": "secret"}]} if volume == "secret" else {}


def _affinity(config: ManifestsConfig, service: Service) -> Value:
    made: Value = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                _affinity_term(config, service.role, "kubernetes.io/hostname", weight=50)
            ]
        }
    }
    if service.role in WORKERS:
        zone = [_affinity_term(config, role, "topology.kubernetes.io/zone", weight=100) for role in WORKERS]
        made["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": zone}
    return made


def _affinity_term(config: ManifestsConfig, role: Role, topology: str, weight: int) -> Value:
    pods = {"labelSelector": {"matchLabels": selector(config, role)}, "topologyKey": topology}
    return {"weight": weight, "podAffinityTerm": pods}
