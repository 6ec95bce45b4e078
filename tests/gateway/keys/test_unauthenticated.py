"""Callers without a valid key write no line into the log, whatever they send: they are counted."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.process.log_lines import MAX_LINES, BoundedLog
from tests.gateway.keys.conftest import KeyMaker
from tests.gateway.running import Serve
from tests.gateway.web.test_protocol import connected


@pytest.fixture
def written(caplog: pytest.LogCaptureFixture) -> Iterator[io.StringIO]:
    """What the gateway writes to stderr."""
    caplog.set_level(logging.INFO, "baton.gateway")
    text = io.StringIO()
    handler = BoundedLog(text)
    logging.getLogger("baton.gateway").addHandler(handler)
    yield text
    logging.getLogger("baton.gateway").removeHandler(handler)


async def test_whoever_has_no_key_fills_no_disk(
    serve: Serve, key_file: Path, make: KeyMaker, written: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    """Five hundred requests write as much as one does. Those of a key write lines, within a limit."""
    key = make("one")
    running = await serve("decode", api_keys=(str(key_file),))
    await running.client.get("/v1/models", headers={"x-request-id": "first"})
    before = len(caplog.text) + len(written.getvalue())
    for number in range(100):
        for path in ("/v1/models", "/nope", "/health", "/ready", "/ping"):
            await running.client.get(path, headers={"x-request-id": f"mine-{number}", "authorization": "Bearer no"})
    async with connected(running) as wire:
        await wire.send(b"\x00\x01\r\n\r\n")
        await wire.answer()
    assert len(caplog.text) + len(written.getvalue()) == before, written.getvalue()[-1000:]
    own = {"x-request-id": "mine", "authorization": f"Bearer {key}"}
    for _ in range(5 * MAX_LINES):
        await running.client.get("/v1/models", headers=own)
    ids = [line for line in written.getvalue().splitlines() if line.endswith(" is mine to its client")]
    assert len(ids) == MAX_LINES
