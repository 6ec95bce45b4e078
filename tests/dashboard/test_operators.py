"""The dashboard opens for operators only where there are keys, and knows them by a cookie that nobody can make."""

import base64
import time
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from contracts.errors import GatewayError
from dashboard.asking import GatewayAddress
from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from infra.network.tls import trusting
from tests.certificates import make_certificate
from tests.dashboard.conftest import Start
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S, wait_until

NOWHERE = "redis://127.0.0.1:1"
PAGES = ["/", "/index.html", "/_stcore/host-config", "/nothing", "/static/x", "//", "/_stcore/health/../host-config"]


def add(path: Path, name: str, operator: bool) -> str:
    key = make_key(name, KeyOptions(operator=operator), time.time())
    change_keys(path, lambda keys: [*keys, key.record], create=True)
    return key.text


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def test_only_operators_see_the_page_and_its_socket(start_dashboard: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    operator, other = add(keys, "me", True), add(keys, "other", False)
    address = start_dashboard("--redis", NOWHERE, "--api-keys", str(keys))
    stream = address.replace("http", "ws") + "/_stcore/stream"
    with httpx.Client(base_url=address, timeout=DEADLINE_S, verify=PLAIN) as client:
        assert client.get("/_stcore/health").status_code == 200
        for path in PAGES:
            answer = client.get(path)
            assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic "), path
            assert client.get(path, auth=("x", other)).status_code == 403
            assert client.get(path, auth=("x", operator[:-1] + "z")).status_code == 401
            assert client.get(path, headers=[(b"authorization", "Basic é".encode())]).status_code == 401
        with pytest.raises(InvalidStatus), connect(stream, additional_headers=basic("x", operator)):
            pass
        assert "baton-operator" not in client.cookies
        answer = client.get("/", auth=("anything", operator))
        assert answer.status_code == 200 and b"<title>" in answer.content
        said = answer.headers["set-cookie"]
        assert "HttpOnly" in said and "SameSite=Strict" in said and operator[-64:] not in said
        cookie = f"baton-operator={client.cookies['baton-operator']}"
        assert client.get("/").status_code == 200, "the cookie will do"
        with connect(stream, additional_headers={"cookie": cookie}):
            pass
        forged = [cookie[:-1] + ("0" if cookie[-1] != "0" else "1"), cookie.replace(".", "-"), "baton-operator=x.y"]
        for wrong in forged:
            with pytest.raises(InvalidStatus), connect(stream, additional_headers={"cookie": wrong}):
                pass
        change_keys(keys, lambda present: [key for key in present if key.name != "me"])
        wait_until(lambda: client.get("/").status_code == 401, "the cookie of a revoked key to be refused")


def test_the_page_speaks_https(start_dashboard: Start, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path / "tls")
    keys = tmp_path / "keys.json"
    operator = add(keys, "me", True)
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--api-keys", str(keys))
    address = start_dashboard("--redis", NOWHERE, *options)
    assert address.startswith("https://")
    answer = httpx.get(address, verify=trusting(str(cert), "--ca"), auth=("x", operator), timeout=DEADLINE_S)
    assert answer.status_code == 200 and answer.headers["set-cookie"].endswith("; Secure")


def test_a_key_for_the_gateway_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    for path, content in (("nothing", None), ("empty", ""), ("text", "two words"), ("binary", "\x7f")):
        if content is not None:
            (tmp_path / path).write_text(content)
        with pytest.raises(GatewayError, match="--api-key-file"):
            GatewayAddress("http://127.0.0.1:1", str(tmp_path / path)).endpoint()
