"""Gives tests of the handoff every transport."""

import pytest

from tests.kvtransfer.pair import WAYS, Way


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """Runs a test over every transport, and over TCP with and without a seal."""
    return WAYS[request.param]
