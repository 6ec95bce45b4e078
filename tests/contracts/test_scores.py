"""Scores keep their numbers when they are packed, parted and joined."""

from typing import Any

import msgspec
import numpy as np
import pytest

from contracts.errors import MessageError
from contracts.ids import AttemptKey
from contracts.messages.gateway import Emitted, Stages, Tokens, decode_from_worker
from contracts.messages.handoff import Branch, Commit
from contracts.messages.sampling import Limits, Sampling
from contracts.messages.wire import encode
from contracts.scores import MAX_PROMPT_SCORES, MAX_TOP_LOGPROBS, Scores, TokenScore
from infra.network.sockets import MAX_MESSAGE_BYTES


def scores(tokens: int, top: int) -> Scores:
    draw = np.random.default_rng(tokens * 31 + top)
    ids, tops = draw.integers(0, 1 << 17, (tokens, top)), draw.normal(size=(tokens, top)).astype(np.float32)
    places = [list(zip(*each, strict=True)) for each in zip(ids.tolist(), tops.tolist(), strict=True)]
    return Scores.of([TokenScore(-0.5 * place, place + 1, each) for place, each in enumerate(places)], top)


@pytest.mark.parametrize("top", [0, 1, 5])
def test_parts_that_are_joined_are_the_whole(top: int) -> None:
    whole = scores(7, top)
    assert len(whole) == 7
    for cut in range(8):
        parts = [whole.part(0, cut), whole.part(cut, 7)]
        assert [len(part) for part in parts] == [cut, 7 - cut]
        assert Scores.joined(parts) == whole
    assert list(whole)[3] == next(iter(whole.part(3, 4)))


def test_numbers_come_out_as_they_went_in() -> None:
    tokens = [TokenScore(-1.5, 2, [(3, -0.25), (4, -1.5)]), TokenScore(-0.125, 1, [(1 << 30, -0.125), (0, -2.5)])]
    assert list(Scores.of(tokens, 2)) == tokens


def test_scores_that_are_not_of_their_tokens_are_no_message() -> None:
    key, whole = AttemptKey("r", 0, 1), scores(3, 2)
    message = Tokens(sender="w", receiver="g", emitted=[Emitted(key, 0, [1, 2, 3], scores=whole)])
    assert decode_from_worker(encode(message)) == message
    for field in ("chosen", "ranks", "top_ids", "tops"):
        with pytest.raises(ValueError, match="other lengths"):
            msgspec.structs.replace(whole, **{field: getattr(whole, field)[:-4]})
    data = encode(message)
    assert data.count(b"\x93\x01\x02\x03") == 1
    with pytest.raises(MessageError):
        decode_from_worker(data.replace(b"\x93\x01\x02\x03", b"\x92\x01\x02"))
    with pytest.raises(ValueError, match="3 scores of 1 tokens"):
        Branch(0, [7], whole)


def test_the_most_scores_of_a_prompt_fit_into_a_message() -> None:
    """In that of the first token, and in a Commit with as many branches as there may be."""
    for top in (0, MAX_TOP_LOGPROBS):
        tokens = MAX_PROMPT_SCORES // (top + 1)
        whole = Scores(top, *(bytes(4 * tokens * each) for each in (1, 1, top, top)))
        branches = [Branch(sample, [sample], scores(1, MAX_TOP_LOGPROBS)) for sample in range(1024)]
        key, one = AttemptKey("r", 0, 1), scores(1, top)
        emitted = Emitted(key, 0, [1], scores=one, prompt_scores=whole)
        assert len(encode(Tokens(sender="w", receiver="g", emitted=[emitted]))) < MAX_MESSAGE_BYTES
        more: dict[str, Any] = dict.fromkeys(("handoff", "payloads", "size", "digest", "offset", "index"), 0)
        more |= {"sampling": Sampling(1), "limits": Limits(1), "stages": Stages()}
        commit = Commit(sender="p", receiver="d", branches=branches, **more, prompt_scores=whole)
        assert len(encode(commit)) < MAX_MESSAGE_BYTES
