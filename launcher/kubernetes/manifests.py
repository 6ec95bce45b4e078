"""Collects all manifests of a deployment, in the order in which they should be applied."""

from launcher.containers.yaml_text import Value
from launcher.deployment import WORKERS
from launcher.kubernetes.objects.autoscaling import adapter_rules, autoscaler, is_autoscaled
from launcher.kubernetes.objects.disruption import disruption_budget
from launcher.kubernetes.objects.ingress import ingress_or_route
from launcher.kubernetes.objects.monitoring import board_and_alerts, service_monitor
from launcher.kubernetes.objects.network import network_policy
from launcher.kubernetes.objects.redis import redis
from launcher.kubernetes.objects.secrets import Secrets, config_map, secret_objects
from launcher.kubernetes.objects.services import service_of
from launcher.kubernetes.objects.storage import models_claim
from launcher.kubernetes.objects.workloads import deployment
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.place import needs_models, pods_deployment


def manifests(config: ManifestsConfig, contents: Secrets) -> list[Value]:
    services = pods_deployment(config).services
    made = [*secret_objects(config, contents), config_map(config)]
    if needs_models(config) and not config.models_claim and config.models_access != "pod":
        made.append(models_claim(config))
    made += [network_policy(config, service) for service in services]
    made += [service_of(config, service) for service in services]
    for service in services:
        made.append(redis(config, service) if service.role == "redis" else deployment(config, service))
    made += [disruption_budget(config, each) for each in services if each.role in (*WORKERS, "gateway")]
    scaled = [service for service in services if is_autoscaled(config, service)]
    made += [autoscaler(config, service) for service in scaled]
    if scaled:
        made.append(adapter_rules(config))
    made += ingress_or_route(config)
    if config.service_monitor:
        made.append(service_monitor(config))
    if config.board_and_alerts:
        made += board_and_alerts(config)
    return made
