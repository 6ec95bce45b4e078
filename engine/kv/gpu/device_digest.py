"""A digest that a GPU computes behind a copy or a landing. The host looks whether it is there, and never waits."""

import torch
from torch import Tensor

DIGEST_MODULUS = 1 << 64


class DeviceDigest:
    """Implements `kvtransfer.memory.DigestedCopy`."""

    def __init__(self, number: Tensor, known: torch.cuda.Event) -> None:
        """`number`: int64 `[]` in pinned memory, which holds the digest behind the event."""
        self._number = number
        self.known = known

    @property
    def done(self) -> bool:
        """Whether the copy has ended and the digest is known."""
        return bool(self.known.query())

    @property
    def digest(self) -> int:
        """The digest; only when it is done."""
        return int(self._number.item()) % DIGEST_MODULUS
