"""How logits change before a token is drawn from them, and what every adjuster offers.

In this order, and in fp32 whatever the model's format (a penalty of 0.05 is less than bf16 resolves):

    x += bias                                                 logit_bias
    x = x / penalty if x > 0 else x * penalty                 repetition_penalty, of tokens in prompt and output
    x -= count * frequency; x -= presence if count > 0        of tokens in the output
    x = FORBIDDEN                                             of tokens that must not come now

transformers and vLLM add biases before they penalize, too. Forbidden is what is banned (the output is still too short
to end), is not among `allowed_token_ids`, would complete a bad word in the output, or has no bit in a grammar's mask.
Where a mask leaves nothing but banned tokens, the bans give way: a text that is complete can end. All else stands, and
a row in which nothing is left gives a forbidden token, which the executor notices and nobody sees. NaN and infinity
stay what they are wherever they are: such a row fails as it does without adjustments.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from engine.constraints import Masks
from engine.model.batch import Sampled
from engine.plan import Work

FORBIDDEN_LOGIT = -(2.0**98)
"""Logit of forbidden tokens: finite at every temperature, and below all others."""


class Adjuster(Protocol):
    """Changes the logits of a step as its works' sampling asks. It keeps counts of sequences from step to step."""

    def adjust(self, logits: Tensor, works: Sequence[Work], before: Sampled | None, masks: Masks | None) -> Tensor:
        """Returns adjusted logits, fp32 `[rows, vocab]`: the given ones, changed, if they are fp32, else new ones.

        `works` has one entry for each row. A work's last token may be `PENDING`: then it is what `before` sampled for
        its sequence, and `Work.tokens` lacks it. Rows of draft tokens stand behind their work's first, and have the
        draft tokens on their way as `Work.proposed`: these are the last tokens of their text. The host does not wait
        for the device. Rows of works that ask for nothing keep their values.
        """
        ...


def is_adjusted(work: Work) -> bool:
    """Returns whether a work that is sampled asks for changed logits."""
    sampling = work.sampling
    assert sampling is not None
    return sampling.looks_back or bool(work.banned or sampling.logit_bias) or sampling.allowed_token_ids is not None
