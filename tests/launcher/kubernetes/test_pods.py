"""The manifests' pods run: without privileges, on read-only files, and each probe is answered by its service."""

import json
import signal
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from infra.config.engine import EngineOptions
from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from launcher.kubernetes.manifests import manifests
from launcher.kubernetes.objects.secrets import read_secrets
from launcher.kubernetes.options import ManifestsConfig
from launcher.kubernetes.replicas import with_replicas
from launcher.options import DEMO_NAME
from tests.certificates import make_certificate
from tests.e2e.harness.host import need_root_and
from tests.launcher.kubernetes.pods import Pod, node
from tests.waiting import LONG_DEADLINE_S, wait_until

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def test_every_probe_is_answered_by_the_real_service(tmp_path: Path) -> None:
    """All five services, with HTTPS and API keys, by the manifests' own commands; then a chat, and a worker's drain."""
    need_root_and(**{"unshare": "util-linux", "ip": "iproute2", "redis-cli": "redis-tools", "redis-server": "redis"})
    engine = EngineOptions(dtype="fp32", cpu_backend="torch", kv_memory=64 << 20)
    key = make_key("app", KeyOptions(), 0.0)
    change_keys(tmp_path / "keys.json", lambda keys: [key.record], create=True)
    cert, its_key = map(str, make_certificate(tmp_path / "tls"))
    secured = ManifestsConfig(api_keys=(str(tmp_path / "keys.json"),), tls_cert=cert, tls_key=its_key)
    config, _ = with_replicas(replace(secured, device="cpu", engine=engine, gateway_pods=1))
    written = manifests(config, read_secrets(config))
    with node(written, tmp_path) as here, ExitStack() as stack:
        pods = {name: stack.enter_context(here.run(name)) for name in here.addresses}
        assert set(pods) == {f"baton-{role}" for role in ("redis", "prefill", "decode", "gateway", "dashboard")}
        assert not pods["baton-decode"].probed("startupProbe"), "it has hardly begun"
        for pod in pods.values():
            for probe in PROBES:
                wait_until(partial(answers_or_ended, pod, probe), f"{probe} of {pod.name}", LONG_DEADLINE_S)
                assert pod.process.poll() is None, f"{pod.name}: {pod.log.read_text()}"
        assert content(pods["baton-gateway"], key.text).strip()
        decode = pods["baton-decode"]
        decode.process.send_signal(signal.SIGTERM)
        assert decode.process.wait(decode.grace) == 0, decode.log.read_text()


def answers_or_ended(pod: Pod, probe: str) -> bool:
    return pod.process.poll() is not None or pod.probed(probe)


def content(gateway: Pod, key: str) -> str:
    body = {"model": DEMO_NAME, "messages": [{"role": "user", "content": "Hello!"}]}
    connection = gateway.connection("http", "HTTPS", 60)
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with gateway.node.host.inside(), closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse().read()
    found = json.loads(answer)
    assert "choices" in found, answer
    text: str = found["choices"][0]["message"]["content"]
    return text
