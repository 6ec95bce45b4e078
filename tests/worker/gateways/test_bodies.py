"""Prompts that come in pieces: each is whole and the one that was promised, or its job fails; whatever is lost is asked
for again, and what nobody wants is forgotten."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from contracts.messages.gateway import Piece
from contracts.messages.job import Body, DecodeJob, Prompt
from contracts.messages.packed_ids import packed, unpacked
from contracts.messages.sampling import Limits, Sampling
from worker.gateways.bodies import GIVE_UP_S, PROMPTS_PER_GATEWAY, REPEAT_S, MissingPrompt, PromptBodies

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
WHOLE = DecodeJob(
    request="g-1",
    attempt=1,
    sender="g",
    receiver="w",
    prompt=Prompt(IDS, 6).packed(),
    sampling=Sampling(7),
    limits=Limits(5),
    deadline=1e12,
    queued_at=1.0,
    samples=(0, 1),
)


def head(request: str = "g-1", attempt: int = 1, sender: str = "g") -> DecodeJob:
    """Returns the job as it is on the stream."""
    body = Body(len(IDS), hashlib.sha256(packed(IDS)).digest())
    prompt = structs.replace(WHOLE.prompt, token_ids=[])
    return structs.replace(WHOLE, request=request, attempt=attempt, sender=sender, prompt=prompt, body=body)


def piece(first: int, end: int, attempt: int = 1, ids: list[int] = IDS) -> Piece:
    """Returns some of the ids, as a gateway sends them."""
    return Piece(sender="g", receiver="w", request="g-1", attempt=attempt, first=first, ids=packed(ids[first:end]))


@pytest.fixture
def bodies() -> PromptBodies:
    """Holds one job that waits for its prompt."""
    bodies = PromptBodies()
    bodies.add(head())
    return bodies


def test_a_job_says_what_it_is_before_its_prompt_has_come() -> None:
    assert (head().tokens, head().emitted) == (WHOLE.tokens, WHOLE.emitted) == (8, 2)


@given(st.lists(st.integers(0, (1 << 31) - 1)))
def test_ids_come_out_as_they_went_in(ids: list[int]) -> None:
    assert unpacked(packed(ids)).tolist() == ids and len(packed(ids)) == 4 * len(ids)


def test_pieces_become_the_job_that_was_promised(bodies: PromptBodies) -> None:
    assert bodies.due(0.0) == [(head(), 0)]
    assert bodies.take(piece(0, 3), 0.0) is None
    assert bodies.due(0.0) == [(head(), 3)], "the next one is asked for at once"
    assert bodies.take(piece(3, 8), 0.0) == WHOLE
    assert len(bodies) == 0 and bodies.due(9.0) == []


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([0, 1, 2])), max_size=20))
def test_whatever_is_lost_repeated_and_reordered_the_prompt_is_the_one_promised(
    sent: list[tuple[int, int, int]],
) -> None:
    bodies, now = PromptBodies(), 0.0
    bodies.add(head())
    for first, end, attempt in sent:
        if (come := bodies.take(piece(first, end, attempt), now)) is not None:
            assert come == WHOLE
            return
    while asked := bodies.due(now := now + REPEAT_S):
        come = bodies.take(piece(asked[0][1], asked[0][1] + 2), now)
    assert come == WHOLE and len(bodies) == 0


def test_a_piece_that_does_not_come_is_asked_for_again_until_it_is_given_up(bodies: PromptBodies) -> None:
    assert bodies.due(0.0) == [(head(), 0)] and bodies.due(REPEAT_S / 2) == []
    assert bodies.due(REPEAT_S) == [(head(), 0)]
    bodies.take(piece(0, 3), 1.0)
    assert bodies.silent(GIVE_UP_S) == [], "it was heard of since"
    assert bodies.silent(1.0 + GIVE_UP_S) == [MissingPrompt(head(), "the prompt did not come within 3 s")]
    assert len(bodies) == 0 and bodies.take(piece(3, 8), 9.0) is None


def test_one_that_was_not_asked_for_yet_is_not_given_up(bodies: PromptBodies) -> None:
    assert bodies.silent(100.0) == []


@pytest.mark.parametrize("ids", [[3, 1, 4, 1, 5, 9, 2, 7], [*IDS, 5]])
def test_another_prompt_than_the_one_promised_fails(bodies: PromptBodies, ids: list[int]) -> None:
    missing = bodies.take(piece(0, 9, ids=ids), 0.0)
    assert isinstance(missing, MissingPrompt) and missing.job == head() and "another" in missing.why
    assert len(bodies) == 0


def test_few_are_asked_for_at_once_and_one_gateway_does_not_hold_up_another() -> None:
    bodies = PromptBodies()
    for number in range(2 * PROMPTS_PER_GATEWAY):
        bodies.add(head(f"g-{number}"))
    bodies.add(head("h-1", sender="h"))
    asked = [job.request for job, _ in bodies.due(0.0)]
    assert asked == [*(f"g-{number}" for number in range(PROMPTS_PER_GATEWAY)), "h-1"]
    bodies.take(piece(0, 8), 0.0)
    assert [job.request for job, _ in bodies.due(0.0)] == [f"g-{PROMPTS_PER_GATEWAY}"], "its place is the next one's"


def test_what_was_cancelled_is_forgotten_and_a_higher_attempt_is_another_job(bodies: PromptBodies) -> None:
    bodies.add(head(attempt=2))
    bodies.forget(lambda key: key.attempt == 2)
    assert [job.attempt for job, _ in bodies.due(0.0)] == [2]
    assert bodies.take(piece(0, 8), 0.0) is None


def test_a_job_with_one_sample_left_still_waits(bodies: PromptBodies) -> None:
    bodies.forget(lambda key: key.sample == 1)
    assert len(bodies) == 1


def test_a_worker_that_leaves_gives_all_up(bodies: PromptBodies) -> None:
    assert [missing.job for missing in bodies.leave()] == [head()] and len(bodies) == 0
