"""Makes the files with the secret and with the operator key of an instance."""

import time
from pathlib import Path

from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from infra.network.sealing import new_secret
from launcher.host.processes import OPERATOR_KEY_FILE, OPERATOR_KEYS_FILE
from launcher.options import DeploymentOptions


def make_operator_key(config: DeploymentOptions, run: Path) -> str:
    """Makes the operator key in the run directory, and returns it; '' where clients need no key."""
    if not config.api_keys:
        return ""
    made = make_key("this-instance", KeyOptions(tenant="baton", operator=True), time.time())
    change_keys(run / OPERATOR_KEYS_FILE, lambda keys: [made.record], create=True)
    (run / OPERATOR_KEY_FILE).touch(mode=0o600)
    (run / OPERATOR_KEY_FILE).write_text(made.text)
    return made.text


def secret_path(config: DeploymentOptions, run: Path) -> Path:
    """Returns the file with the deployment's secret: `--secret-file`, or a file with a new secret."""
    if config.secret_file:
        return Path(config.secret_file).resolve()
    path = run / "secret"
    path.touch(mode=0o600)
    path.write_text(new_secret())
    return path
