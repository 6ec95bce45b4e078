"""What the engine's tests share."""

from collections.abc import Iterator

import pytest
import torch

from engine.start import profiling, step_contrasts
from tests.engine.backends.native.levels import CHOSEN_LEVEL, choose

if CHOSEN_LEVEL:
    choose(CHOSEN_LEVEL)

# Nobody asks how fast a test's model is, and some are loaded a hundred times.
profiling.MEASURING_S = 0.002
profiling.FIRST_PROFILE_TOKENS = 4
step_contrasts.MAX_CONTRASTS_S = 0.0


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Models of these sizes are faster without threads, and other tests may share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
