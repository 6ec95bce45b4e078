"""Prints manifests for Kubernetes (`baton manifests`)."""

import os
import sys
from collections.abc import Sequence

from infra.cli import parse
from launcher.containers.container import IMAGE
from launcher.containers.yaml_text import as_yaml
from launcher.kubernetes.checks import check
from launcher.kubernetes.manifests import manifests
from launcher.kubernetes.objects.secrets import read_secrets
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.replicas import with_replicas
from launcher.refusal import refusing

NEW_SECRET = (
    "note: the Secret has a new secret each time; --secret-file FILE keeps one (openssl rand -hex 32 > secret), and"
    " --existing-secret NAME leaves it out"
)
ONE_DECODE_WORKER = (
    "note: --decode 1: during a roll-out {} until the new decode worker is ready; --worker-surge 1 starts it before the"
    " old one stops, if the cluster has room"
)
OWN_IMAGE = (
    f"note: --image: {IMAGE!r} is in no registry; build it (docker build -t REGISTRY/{IMAGE} .), push it to a registry"
    f" that the nodes reach, and name it: --image REGISTRY/{IMAGE}"
)


@refusing
def print_manifests(arguments: Sequence[str]) -> int:
    """Prints the manifests; returns the exit status: 2 for bad input."""
    config, notes = with_replicas(parse(ManifestsConfig, arguments, "baton manifests", os.environ))
    check(config)
    made = manifests(config, read_secrets(config))
    for each in notes:
        print(f"note: {each}", file=sys.stderr)
    if not config.secret_file and not config.existing_secret:
        print(NEW_SECRET, file=sys.stderr)
    if config.device != "cpu" and config.decode == 1 and not config.worker_surge:
        meanwhile = "prefill workers answer alone, slower," if config.prefill else "nothing answers"
        print(ONE_DECODE_WORKER.format(meanwhile), file=sys.stderr)
    if config.image == IMAGE:
        print(OWN_IMAGE, file=sys.stderr)
    print(as_yaml(made), end="")
    return 0
