"""States that another worker has handed over come to the device without a wait of the host."""

import numpy as np
import pytest
import torch

from engine.plan import Work
from engine.speculation.proposers.sequence_states import SequenceStates
from tests.engine.simulated_device import CUDA
from tests.engine.simulated_torch import simulated_device

HIDDEN = 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_that_was_handed_over_is_copied_beside_the_steps(dtype: torch.dtype) -> None:
    state = np.arange(HIDDEN, dtype=np.float32)
    handed = Work(1, 5, [1], ([1],), state=state.tobytes())
    unknown = Work(2, 5, [1], ([2],))
    with simulated_device() as device:
        kept = SequenceStates(2, HIDDEN, CUDA, dtype)
        states, known = kept.before([unknown, handed], lambda work: None)
        assert device.waits == 0
        assert known == [False, True] and states[1].tolist() == state.tolist()
    assert device.races == []
