"""Salts: equal for one tenant on every gateway of a deployment, different otherwise, and never the token."""

import logging
import re
from itertools import combinations

import pytest

from contracts.messages.wire import encode
from gateway.keys.caller import Caller
from gateway.keys.callers import api_key_of
from gateway.requests.tenant import Tenants
from tests.gateway.running import Running

SECRET = b"a secret of the tests, long enough"
TOKEN = "sk-very-private-0123456789"


def salt(authorization: str, cache_salt: str, secret: bytes = SECRET) -> str:
    return Tenants(secret).salt(Caller(token=api_key_of({"authorization": authorization})), cache_salt)


def test_one_tenant_one_salt() -> None:
    one = salt(f"Bearer {TOKEN}", "")
    assert re.fullmatch("[0-9a-f]{32}", one)
    assert one == salt(f"bearer   {TOKEN} ", "")
    assert one != salt(f"Bearer {TOKEN}", "", SECRET + b"!"), "another deployment"


def test_keys_of_a_tenant_share_a_salt_and_no_token_can_have_it() -> None:
    acme = Tenants(SECRET).salt(Caller(key="a", tenant="acme"))
    assert acme == Tenants(SECRET).salt(Caller(key="b", tenant="acme", weight=2.0)) != ""
    others = [Caller(tenant="acme2"), *(Caller(token=name) for name in ("acme", "tenant acme", "tenant 4:acme"))]
    assert acme not in [Tenants(SECRET).salt(caller) for caller in others]


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic dTpw", TOKEN])
def test_nobody_has_no_salt(authorization: str) -> None:
    assert salt(authorization, "") == ""


def test_what_differs_has_different_salts() -> None:
    tokens = [("Bearer a", ""), ("Bearer b", ""), ("Bearer ab", ""), ("Bearer é", "")]
    salts = [("", "ab"), ("", "1:a"), ("", "b"), ("Bearer a", "b"), ("Bearer a", "é")]
    said = tokens + salts
    for one, other in combinations([salt(*pair) for pair in said], 2):
        assert one and other and one != other


async def test_the_job_has_the_salt_and_never_the_token(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"prompt": "Hi!", "max_tokens": 2}
    for headers, more in (
        ({"authorization": f"Bearer {TOKEN}"}, {}),
        ({"authorization": f"Bearer {TOKEN}"}, {}),
        ({"authorization": "Bearer another"}, {}),
        ({"authorization": f"Bearer {TOKEN}"}, {"cache_salt": "mine"}),
        ({}, {"cache_salt": "mine"}),
        ({}, {}),
    ):
        answer = await running.client.post("/v1/completions", json=body | more, headers=headers)
        assert answer.status_code == 200
        assert TOKEN not in answer.text
    jobs = running.peer("prefill").jobs
    first, again, other, mixed, own, nobody = (job.prompt.salt for job in jobs)
    assert first == again and nobody == ""
    assert len({first, other, mixed, own, nobody}) == 5
    await running.finished(len(jobs))
    assert not any(TOKEN.encode() in encode(job) for job in jobs)
    assert TOKEN not in caplog.text
    for key in await running.store.keys("*"):
        assert TOKEN.encode() not in (await running.store.dump(key) or b"")
