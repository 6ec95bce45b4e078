"""Makes the secret and the operator key of an instance."""

import time
from pathlib import Path

from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from infra.network.sealing import new_secret
from launcher.host.processes import OWN_KEY, OWN_KEYS
from launcher.options import DeploymentOptions


def own_key(config: DeploymentOptions, run: Path) -> str:
    """Makes the operator key in the instance's run directory; empty where clients need no key."""
    if not config.api_keys:
        return ""
    made = make_key("this-instance", KeyOptions(tenant="baton", operator=True), time.time())
    change_keys(run / OWN_KEYS, lambda keys: [made.record], create=True)
    (run / OWN_KEY).touch(mode=0o600)
    (run / OWN_KEY).write_text(made.text)
    return made.text


def secret_path(config: DeploymentOptions, run: Path) -> Path:
    """Returns the file with the deployment's secret: `--secret-file`, or a file with a new secret."""
    if config.secret_file:
        return Path(config.secret_file).resolve()
    path = run / "secret"
    path.touch(mode=0o600)
    path.write_text(new_secret())
    return path
