"""Every transport."""

import pytest

from tests.kvtransfer.pair import WAYS, Way


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """Every transport, and TCP with and without a seal."""
    return WAYS[request.param]
