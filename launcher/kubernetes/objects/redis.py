"""Makes the StatefulSet of the deployment's Redis server, which keeps an append-only file on a volume."""

from launcher.containers.container import DATA_DIRECTORIES, REDIS_IMAGE, redis_command
from launcher.containers.yaml_text import Value
from launcher.deployment import Service
from launcher.kubernetes.names import labels, metadata, name_of, selector
from launcher.kubernetes.objects.pods import RESTRICTED_CONTEXT, run_as
from launcher.kubernetes.objects.secrets import secret_name
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import REDIS_PASSWORD
from launcher.kubernetes.quantities import cores, size

REDIS_USER_ID = 999  # of the user `redis` in the image
REDIS_CPUS = 0.5
MEMORY_FACTOR = 2  # memory limit over --max-memory: while Redis rewrites its file, a forked copy may hold as much again
PING_COMMAND = ["sh", "-c", "redis-cli ping | grep -q PONG"]  # a server that still reads its file answers LOADING


def redis(config: ManifestsConfig, service: Service) -> Value:
    """Makes the StatefulSet. The password is an environment variable, so no command line outside the pod shows it."""
    (port,), memory = service.ports, MEMORY_FACTOR * service.max_memory
    program, *words = redis_command(service)
    claim: Value = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size(config.redis_size)}}}
    if config.storage_class:
        claim["storageClassName"] = config.storage_class
    answers: Value = {"exec": {"command": PING_COMMAND}, "timeoutSeconds": 5}
    password = {"secretKeyRef": {"name": secret_name(config), "key": "redis-password"}}
    container: Value = {
        "name": "redis",
        "image": REDIS_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": [program],
        "args": [*words, "--dir", DATA_DIRECTORIES["redis"], "--requirepass", f"$({REDIS_PASSWORD})"],
        "env": [{"name": REDIS_PASSWORD, "valueFrom": password}],
        "ports": [{"name": port.name, "containerPort": port.number, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": cores(REDIS_CPUS), "memory": size(memory)},
            "limits": {"memory": size(memory)},
        },
        "startupProbe": {**answers, "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": {**answers, "periodSeconds": 5},
        "livenessProbe": {"tcpSocket": {"port": port.name}, "periodSeconds": 10, "timeoutSeconds": 5},
        "securityContext": RESTRICTED_CONTEXT,
        "volumeMounts": [{"name": "data", "mountPath": DATA_DIRECTORIES["redis"]}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(config, "redis", "redis"),
        "spec": {
            "replicas": 1,
            "serviceName": name_of(config, "redis"),
            "selector": {"matchLabels": selector(config, "redis")},
            "template": {
                "metadata": {"labels": labels(config, "redis")},
                "spec": {
                    **({"priorityClassName": priority} if (priority := config.placement.priority_class) else {}),
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": run_as(REDIS_USER_ID),
                    "containers": [container],
                },
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }
