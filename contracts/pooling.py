"""What a model gives for a whole text in place of further tokens: a vector, or a score of a pair of texts."""

from typing import Literal

from msgspec import Struct

PoolingMethod = Literal["last", "mean", "cls"]
"""The state of the last token, the mean of all states, or the state of the first token."""
PoolingTask = Literal["embed", "score"]


class Pooling(Struct, frozen=True):
    """How a model makes one result out of the states of a text's tokens."""

    task: PoolingTask
    method: PoolingMethod
    width: int = 0  # values of a vector; 1 of a score
    normalized: bool = True  # vectors have length 1
    matryoshka: bool = False  # a vector's first values are a vector, too
    dimensions: tuple[int, ...] = ()  # numbers of first values that are a vector; (): any, with `matryoshka`
    sigmoid: bool = True  # scores are between 0 and 1
    tokens: tuple[int, ...] = ()  # ids of no and yes: a score is the difference of their logits; (): a head gives it
