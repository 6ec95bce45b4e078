"""Each ended request has one line with its figures, and without a word of its client."""

import logging

import pytest

from infra.process.log_lines import ACCESS_LOGGER
from tests.gateway.keys.conftest import KeyMaker, key_file, make
from tests.gateway.running import Serve, until

__all__ = ["key_file", "make"]


async def test_a_line_names_who_asked_how_much_and_the_end(
    serve: Serve, make: KeyMaker, key_file: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, ACCESS_LOGGER)
    running = await serve("prefill", "decode", api_keys=(str(key_file),))
    headers = {"authorization": f"Bearer {make('phone', tenant='acme')}"}
    await until(lambda: running.gateway._keys.refresh() or True, "the key")  # type: ignore[union-attr]
    body = {"prompt": ["SECRET", "SECRETS"], "max_tokens": 3}
    answer = await running.client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200
    await until(lambda: not len(running.gateway.requests), "the end")
    lines = [record for record in caplog.records if record.name == ACCESS_LOGGER]
    fields = [record.fields for record in lines]  # type: ignore[attr-defined]
    assert fields[0]["request"] == answer.headers["x-request-id"] and len(fields) == 2
    wanted = {"tenant": "acme", "outcome": "finished", "reason": "length", "output_tokens": 3}
    for each in fields:
        assert {name: each[name] for name in wanted} == wanted
        assert 0 < each["ttft_ms"] <= each["e2e_ms"] and each["decode_worker"] == running.peer("decode").epoch
    assert not any("SECRET" in str(vars(record)) for record in lines)


async def test_the_access_log_can_be_off(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, ACCESS_LOGGER)
    running = await serve("prefill", "decode", access_log=False)
    assert (await running.chat()).status_code == 200
    await until(lambda: not len(running.gateway.requests), "the end")
    assert not [record for record in caplog.records if record.name == ACCESS_LOGGER]
