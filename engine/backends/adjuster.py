"""The changes of logits before a token is drawn, and the interface of adjusters.

In this order, and in fp32 whatever the model's format (bf16 cannot resolve a penalty of 0.05):

    x += bias                                                 logit_bias
    x = x / penalty if x > 0 else x * penalty                 repetition_penalty, of tokens in prompt and output
    x -= count * frequency; x -= presence if count > 0        of tokens in the output
    x = FORBIDDEN_LOGIT                                       of forbidden tokens

transformers and vLLM also add biases before penalties. A token is forbidden if it is banned (the output is still too
short to end), is not among `allowed_token_ids`, would complete a bad word in the output, or has no bit in a grammar's
mask. If a mask leaves only banned tokens, the bans are ignored, so that a complete text can end. Otherwise a row may
have only forbidden tokens; the executor then drops its draw. NaN and infinity stay unchanged everywhere: such a row
fails as it does without adjustments.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from engine.constraints import Masks
from engine.model.batch import Sampled
from engine.plan import Work

FORBIDDEN_LOGIT = -(2.0**98)
"""Logit of forbidden tokens: finite at every temperature, and below all other logits."""


class Adjuster(Protocol):
    """Changes the logits of a step according to its works' sampling. Keeps counts of sequences from step to step."""

    def adjust(self, logits: Tensor, works: Sequence[Work], before: Sampled | None, masks: Masks | None) -> Tensor:
        """Returns adjusted logits, fp32 `[rows, vocab]`: the given tensor, changed, if it is fp32, else a new tensor.

        `works` has one entry for each row. A work's last token may be `PENDING_TOKEN`: it stands for the token that
        `before` sampled for its sequence, which `Work.tokens` lacks. Rows of draft tokens follow their work's first
        row, and have the draft tokens on their path as `Work.proposed`, the last tokens of their text. The host does
        not wait for the device. Rows of works without adjustments keep their values.
        """
        ...


def is_adjusted(work: Work) -> bool:
    sampling = work.sampling
    assert sampling is not None
    return sampling.looks_back or bool(work.banned or sampling.logit_bias) or sampling.allowed_token_ids is not None
