"""Medusa's typical acceptance: accepts draft tokens that are likely enough, whatever was drawn. It changes the output.

A draft token x after the text, or after an accepted draft token, is accepted if the model's distribution has

    p(x) > min(EPSILON, DELTA exp(-H(p)))                                      Cai et al. 2024, section 3.3.1

p is the sampling distribution, after penalties, masks, temperature and filters; H is its entropy in nats. A draft token
that equals the draw is accepted as well. The longest accepted path is taken, followed by the token drawn at its end.
The output is therefore not a sample of the model's distribution: unlikely tokens are rarer. It is used only with
`--acceptance typical`, and not at temperature 0 or where log-probabilities are reported.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.backends.reference.sampling.processed import processed
from engine.device import to_device
from engine.plan import Work
from engine.speculation.verify.verification import parents_of, row_count

EPSILON, DELTA = 0.09, 0.3
"""The values for the published heads, FasterDecoding/Medusa."""


def may_be_typical(work: Work) -> bool:
    sampling = work.sampling
    return sampling is not None and bool(work.proposed and sampling.temperature) and sampling.logprobs is None


def likely(logits: Tensor, works: Sequence[Work], tokens: Tensor) -> Tensor:
    """Returns int64 `[samples]` on the device: 1 for the row of each draft token that is likely enough.

    Args:
        logits: `[rows, vocab]` that `tokens` were drawn from.
        works: the sampled works, in order; each has `row_count` rows.
        tokens: int64 `[samples]`.
    """
    found = torch.zeros_like(tokens)
    row = place = 0
    asked: list[tuple[int, int, int, int]] = []  # by draft token: its parent's row and place, its own place, its token
    samplings = []
    for work in works:
        if may_be_typical(work) and work.sampling is not None:
            for guess, (parent, token) in enumerate(zip(parents_of(work), work.proposed, strict=True), 1):
                asked.append((row + 1 + parent, place + 1 + parent, place + guess, token))
                samplings.append(work.sampling)
        row += row_count(work)
        place += len(work.samples) + len(work.proposed)
    if asked:
        rows, befores, places, guesses = to_device(np.array(asked, np.int64).T.copy(), logits.device)
        logs = processed(logits[rows], samplings, tokens[befores]).log_softmax(-1)
        entropy = -(logs.exp() * logs).sum(-1)
        least = (DELTA * (-entropy).exp()).clamp(max=EPSILON)
        found[places] = (logs.gather(1, guesses[:, None])[:, 0].exp() > least).long()
    return found


def followed(work: Work, tokens: Sequence[int], likely_rows: Sequence[int]) -> list[int]:
    """Returns the draws of a work's rows, with each accepted draft token in place of the draw at its parent.

    `likely_rows`: by row, 0 if its draft token is not likely enough.
    """
    ways: list[list[int] | None] = [[]]  # accepted paths to the text's end and to each draft token; None: rejected
    parents = parents_of(work)
    for guess, parent in enumerate(parents):
        before = ways[parent + 1]
        counts = likely_rows[guess + 1] or work.proposed[guess] == tokens[parent + 1]
        ways.append([*before, guess] if before is not None and counts else None)
    found = list(tokens)
    for guess in max((way for way in ways if way is not None), key=len):
        found[parents[guess] + 1] = work.proposed[guess]
    return found
