"""Lays conversations side by side into rows of a few fixed lengths.

A conversation goes into the shortest kind of row that holds it, so that short questions do not pay for long attention,
and long dialogs are seen whole. Conversations in a row can see those before them: the begin-of-sequence token is what
tells the model to start afresh, and the noise before it is practice for long chats.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

Encoded = tuple[list[int], list[float]]

ROW_LENGTHS = (256, 768, 2048)


class Packer:
    """Collects conversations until one kind of row has a batch of tokens ready."""

    def __init__(self, encoded: Iterator[Encoded], batch_tokens: int, pad: int) -> None:
        self._encoded = encoded
        self._batch_tokens = batch_tokens
        self._pad = pad
        self._waiting: dict[int, list[Encoded]] = {length: [] for length in ROW_LENGTHS}

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Returns token ids and weights, both [rows, length], with rows x length about `batch_tokens`."""
        while True:
            ids, weights = next(self._encoded)
            length = next((n for n in ROW_LENGTHS if len(ids) <= n), ROW_LENGTHS[-1])
            waiting = self._waiting[length]
            waiting.append((ids[:length], weights[:length]))
            # A tenth more than fits, so that every row's end finds something short to fill it.
            if sum(len(ids) for ids, _ in waiting) > 1.1 * self._batch_tokens:
                return self._fill(length)

    def _fill(self, length: int) -> tuple[Tensor, Tensor]:
        """Fills rows by first fit, longest first; conversations that do not fit wait for the next batch."""
        count = max(1, self._batch_tokens // length)
        rows: list[Encoded] = [([], []) for _ in range(count)]
        left = []
        for ids, weights in sorted(self._waiting[length], key=lambda item: -len(item[0])):
            row = next((row for row in rows if len(row[0]) + len(ids) <= length), None)
            if row is None:
                left.append((ids, weights))
            else:
                row[0].extend(ids)
                row[1].extend(weights)
        self._waiting[length] = left
        for row_ids, row_weights in rows:
            row_ids.extend([self._pad] * (length - len(row_ids)))
            row_weights.extend([0.0] * (length - len(row_weights)))
        return torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])
