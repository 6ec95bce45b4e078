"""Options of `baton manifests` besides the deployment's options: names, sizes, and optional objects."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from contracts.kinds import Bytes, Count, Port, Positive, Seconds, URLText
from launcher.containers.container import IMAGE
from launcher.options import DeploymentOptions

NameOrNone = Annotated[str, Meta(extra={"metavar": "NAME"}, pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$")]


class PodPlacement(Struct, frozen=True, kw_only=True):
    """Nodes, classes and environment of pods."""

    node_selector: Annotated[
        tuple[str, ...],
        Meta(
            extra={"metavar": "NAME=VALUE"},
            description="label of the nodes that workers may run on; may be repeated",
        ),
    ] = ()
    runtime_class: Annotated[
        NameOrNone, Meta(description="RuntimeClass of workers, such as nvidia; empty: the cluster's default")
    ] = ""
    priority_class: Annotated[NameOrNone, Meta(description="PriorityClass of all pods; empty: none")] = ""
    env: Annotated[
        tuple[str, ...],
        Meta(
            extra={"metavar": "NAME=VALUE"},
            description="environment variable of all pods but Redis's; may be repeated",
        ),
    ] = ()
    scratch_size: Annotated[
        Bytes, Meta(description="bound of what a pod may write to each directory that is lost with it, such as /tmp")
    ] = 8 << 30


class IngressOptions(Struct, frozen=True, kw_only=True):
    """Access to the gateways from outside the cluster."""

    service_type: Annotated[
        Literal["ClusterIP", "LoadBalancer", "NodePort"], Meta(description="type of the gateways' Service")
    ] = "ClusterIP"
    hostname: Annotated[
        NameOrNone,
        Meta(
            description="name by which clients outside reach the gateways, for which an Ingress is written, or with "
            "--route-gateway an HTTPRoute; empty: neither"
        ),
    ] = ""
    ingress_class: Annotated[NameOrNone, Meta(description="class of the Ingress; empty: the cluster's default")] = ""
    ingress_tls_secret: Annotated[
        NameOrNone, Meta(description="Secret with the certificate of --hostname, for the Ingress; empty: HTTP")
    ] = ""
    ingress_annotation: Annotated[
        tuple[str, ...],
        Meta(
            extra={"metavar": "NAME=VALUE"},
            description="annotation of the Ingress, such as nginx.ingress.kubernetes.io/proxy-read-timeout=600; may "
            "be repeated",
        ),
    ] = ()
    route_gateway: Annotated[
        str,
        Meta(
            extra={"metavar": "[NAMESPACE/]NAME"},
            pattern=r"^(([a-z0-9-]{1,63}/)?[a-z0-9][a-z0-9.-]{0,252})?$",
            description="Gateway of the Gateway API for an HTTPRoute in place of an Ingress; empty: an Ingress",
        ),
    ] = ""


class ManifestsConfig(DeploymentOptions, frozen=True, kw_only=True):
    """Prints manifests for Kubernetes, which `kubectl apply -f` takes.

    Example: ./baton manifests --model Qwen/Qwen3-0.6B --prefill 2 --max-decode 8 --slo ttft=2s,tpot=100ms > baton.yaml
    """

    COMMON_OPTIONS: ClassVar = (
        *("model", "image", "name", "namespace", "prefill", "decode", "gpus", "gpu_name", "max_prefill", "max_decode"),
        *("worker_memory", "models_claim", "models_size", "hf_token_secret", "secret_file", "existing_secret"),
        *("api_keys", "slo", "service_monitor", "board_and_alerts"),
    )

    name: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME"},
            pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$",
            description="name of the deployment, and prefix of its objects' names: up to 40 small letters, digits "
            "and dashes, a letter first",
        ),
    ] = "baton"
    namespace: Annotated[
        NameOrNone, Meta(description="namespace that all objects name; empty: the one that kubectl is told")
    ] = ""
    image: Annotated[
        str,
        Meta(
            extra={"metavar": "IMAGE"}, description="container image with its tag or digest; the Dockerfile builds it"
        ),
    ] = IMAGE
    image_pull_secret: Annotated[
        NameOrNone, Meta(description="Secret with the credentials of the image's registry; empty: none is needed")
    ] = ""
    drain_seconds: Annotated[
        Seconds, Meta(description="seconds that what is in progress gets when a gateway or a worker is told to stop")
    ] = 60.0
    start_minutes: Annotated[
        Positive, Meta(description="minutes that a worker's start may take, a download of the model among them")
    ] = 30
    gateway_pods: Annotated[Positive, Meta(description="gateway pods, each with --gateways processes")] = 2
    gpus: Annotated[
        Count,
        Meta(
            description="GPUs of the cluster that the workers fill, each rank with its own; 0: without --prefill and "
            "--decode one prefill worker and one decode worker"
        ),
    ] = 0
    gpu_name: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME"},
            description="name of those GPUs, such as L4, by which they are divided among prefill and decode workers",
        ),
    ] = "A100"
    max_prefill: Annotated[
        Count | None,
        Meta(
            description="prefill workers that the autoscaler may run, --prefill at least; 0: no autoscaler; default: "
            "4, or with --gpus 0"
        ),
    ] = None
    max_decode: Annotated[
        Count | None,
        Meta(
            description="decode workers that the autoscaler may run, --decode at least; 0: no autoscaler; default: 4, "
            "or with --gpus 0"
        ),
    ] = None
    queued_tokens: Annotated[
        Positive, Meta(description="tokens of prompts in line for each prefill worker above which one more is started")
    ] = 16_384
    gpu_resource: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME"},
            pattern=r"^[a-z0-9./-]+$",
            description="name of the resource by which a node offers its GPUs",
        ),
    ] = "nvidia.com/gpu"
    worker_cpus: Annotated[float, Meta(extra={"metavar": "N"}, gt=0, description="cores that each worker asks for")] = (
        4.0
    )
    worker_surge: Annotated[
        Count,
        Meta(
            description="workers of each role that a roll-out starts before it stops an old one, for which the cluster "
            "needs free GPUs; 0: an old one stops first"
        ),
    ] = 0
    worker_memory: Annotated[Bytes, Meta(description="memory that each worker may take, its host tier included")] = (
        32 << 30
    )
    models_claim: Annotated[
        NameOrNone,
        Meta(description="PersistentVolumeClaim that has the models, mounted at /models; empty: one is written"),
    ] = ""
    models_size: Annotated[Bytes, Meta(description="size of the volume for models")] = 200 << 30
    models_access: Annotated[
        Literal["ReadWriteMany", "ReadWriteOnce", "pod"],
        Meta(
            description="ReadWriteMany, for workers on several nodes, ReadWriteOnce, or pod: no claim, and each pod "
            "downloads the model to its node's disk"
        ),
    ] = "ReadWriteMany"
    storage_class: Annotated[NameOrNone, Meta(description="of the volumes; empty: the cluster's default")] = ""
    redis_size: Annotated[Bytes, Meta(description="size of the volume for Redis's append-only file")] = 8 << 30
    existing_secret: Annotated[
        NameOrNone,
        Meta(
            description="Secret that is there already, with secret, redis-url and, without --redis, redis-password; "
            "empty: one is written, with the secret of --secret-file, or with a new one"
        ),
    ] = ""
    hf_token_secret: Annotated[
        str,
        Meta(
            extra={"metavar": "NAME[:KEY]"},
            pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:[A-Za-z0-9._-]+)?)?$",
            description="Secret that is there already with the hub's token, NAME or NAME:KEY (token, unless said); "
            "empty: the model needs none",
        ),
    ] = ""
    hf_endpoint: Annotated[
        URLText, Meta(description="URL of the hub with the model; empty: https://huggingface.co")
    ] = ""
    port: Annotated[
        int, Meta(ge=1024, le=65535, description="port of the endpoint, of its pods and of its Service")
    ] = 8000
    dashboard_port: Annotated[Port, Meta(description="port of the dashboard; 0: no dashboard")] = 8501
    placement: PodPlacement = PodPlacement()
    ingress: IngressOptions = IngressOptions()
    adapter_namespace: Annotated[
        NameOrNone,
        Meta(
            description="namespace of prometheus-adapter, for the ConfigMap with its rules, which it mounts from its "
            "own namespace; empty: --namespace"
        ),
    ] = ""
    service_monitor: Annotated[
        bool, Meta(description="whether a ServiceMonitor is written, by which Prometheus' operator finds /metrics")
    ] = False
    board_and_alerts: Annotated[
        bool,
        Meta(
            description="whether a PrometheusRule with the alert rules is written, and a ConfigMap with Grafana's "
            "board (label grafana_dashboard=1)"
        ),
    ] = False
    monitor_label: Annotated[
        tuple[str, ...],
        Meta(
            extra={"metavar": "NAME=VALUE"},
            description="label of the ServiceMonitor and the PrometheusRule, NAME=VALUE; may be repeated. An operator "
            "selects both by label: kube-prometheus-stack's by release=ITS-RELEASE",
        ),
    ] = ()
