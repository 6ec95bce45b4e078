"""Makes the StatefulSet of the deployment's own Redis server, which keeps an append-only file on a volume."""

from launcher.container import KEPT, REDIS_IMAGE, redis_command
from launcher.deployment import Service
from launcher.kubernetes.names import labels, metadata, name_of, selector
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import REDIS_PASSWORD
from launcher.kubernetes.pods import LOCKED_DOWN, user
from launcher.kubernetes.quantities import cores, size
from launcher.kubernetes.secrets import secret_name
from launcher.yaml_text import Value

USER = 999  # the image's own
CPUS = 0.5
MEMORY_FACTOR = 2  # of what the server holds: while it writes its file anew, a forked copy may hold as much
ANSWERS = ["sh", "-c", "redis-cli ping | grep -q PONG"]  # one that still reads its file answers something else


def redis(config: ManifestsConfig, service: Service) -> Value:
    """Makes the StatefulSet. The password is in the environment, and on no command line outside the pod."""
    (port,), memory = service.ports, MEMORY_FACTOR * service.max_memory
    program, *words = redis_command(service)
    claim: Value = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size(config.redis_size)}}}
    if config.storage_class:
        claim["storageClassName"] = config.storage_class
    answers: Value = {"exec": {"command": ANSWERS}, "timeoutSeconds": 5}
    password = {"secretKeyRef": {"name": secret_name(config), "key": "redis-password"}}
    container: Value = {
        "name": "redis",
        "image": REDIS_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": [program],
        "args": [*words, "--dir", KEPT["redis"], "--requirepass", f"$({REDIS_PASSWORD})"],
        "env": [{"name": REDIS_PASSWORD, "valueFrom": password}],
        "ports": [{"name": port.name, "containerPort": port.number, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": cores(CPUS), "memory": size(memory)},
            "limits": {"memory": size(memory)},
        },
        "startupProbe": {**answers, "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": {**answers, "periodSeconds": 5},
        "livenessProbe": {"tcpSocket": {"port": port.name}, "periodSeconds": 10, "timeoutSeconds": 5},
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [{"name": "data", "mountPath": KEPT["redis"]}],
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
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": user(USER),
                    "containers": [container],
                },
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }
