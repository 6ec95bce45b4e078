"""Typical acceptance takes guesses that are likely enough, and no others; who does not want it does not get it."""

import torch
from transformers import AutoTokenizer

from contracts.messages.sampling import Sampling
from demo_model.corpus import conversations
from demo_model.evaluate import prompt
from engine.backends.adjuster import FORBIDDEN_LOGIT
from engine.plan import Work
from engine.speculation.verify.typical import DELTA, EPSILON, likely, may_be_typical, with_accepted_drafts
from tests.engine.drive import GREEDY
from tests.engine.grammars.answering import DEMO
from tests.engine.speculation.serving import Asked, Serving
from tests.engine.test_golden import make_engine

HOT = Sampling(seed=3)
PARENTS = (-1, -1, 0, 1, 1, 4)
GUESSES = (10, 11, 12, 13, 14, 15)
END = 2
SEED = 1234  # of conversations that no training has seen


def work(sampling: Sampling, **changes: object) -> Work:
    ids = [1, 2, *GUESSES]
    settings = {"proposed": GUESSES, "parents": PARENTS, **changes}
    return Work(3, 6, ids, ([1, 2],), sampling, **settings)  # type: ignore[arg-type]


def test_likely_enough_is_what_the_papers_formula_says() -> None:
    """Beside a work without guesses and one of three samples: rows and places are those of all."""
    torch.manual_seed(0)
    works = [
        Work(1, 4, [9], ([3],), HOT, (0, 1, 2)),
        work(Sampling(seed=1, temperature=0.7)),
        Work(2, 4, [9], ([3],), HOT),
    ]
    logits = 3 * torch.randn(1 + 7 + 1, 40)
    logits[1, 11] = FORBIDDEN_LOGIT
    found = likely(logits, works, torch.zeros(3 + 7 + 1, dtype=torch.int64))
    p = (logits / 0.7).softmax(-1)
    expected = [0] * 11
    for guess, (parent, token) in enumerate(zip(PARENTS, GUESSES, strict=True)):
        own = p[2 + parent]
        entropy = -(own * own.clamp(min=1e-30).log()).sum()
        expected[3 + 1 + guess] = int(own[token] > min(EPSILON, DELTA * float((-entropy).exp())))
    assert found.tolist() == expected and 0 < sum(expected) < 6


def test_filters_leave_nothing_likely_behind_them() -> None:
    logits = torch.zeros(7, 40)
    logits[:, 11], logits[:, 12] = 2.0, 5.0
    even = likely(logits, [work(Sampling(seed=1))], torch.full((7,), 12))
    best = likely(logits, [work(Sampling(seed=1, top_k=1))], torch.full((7,), 12))
    assert even.tolist() == [0, 0, 0, 1, 0, 0, 0] and best.tolist() == [0, 0, 0, 1, 0, 0, 0]
    logits[:, 11] = 4.9
    assert likely(logits, [work(Sampling(seed=1))], torch.full((7,), 12)).tolist() == [0, 0, 1, 1, 0, 0, 0]
    assert likely(logits, [work(Sampling(seed=1, top_k=1))], torch.full((7,), 12)).tolist() == [0, 0, 0, 1, 0, 0, 0]


def test_the_longest_way_of_likely_guesses_is_followed() -> None:
    draws = [30, 31, 32, 33, 34, 35, 36]
    assert with_accepted_drafts(work(HOT), draws, [0, 1, 1, 0, 0, 1, 1]) == [11, 31, 14, 33, 34, 15, 36]
    assert with_accepted_drafts(work(HOT), draws, [0, 1, 1, 1, 0, 0, 1]) == [10, 12, 32, 33, 34, 35, 36]
    assert with_accepted_drafts(work(HOT), draws, [0, 0, 0, 1, 1, 1, 1]) == draws, "behind nothing that is likely"
    drawn = [10, 12, 32, 33, 34, 35, 36]
    assert with_accepted_drafts(work(HOT), drawn, [0, 0, 1, 0, 0, 0, 0])[:2] == [10, 12], "what was drawn"


def test_who_is_told_how_likely_tokens_are_gets_what_is_drawn() -> None:
    assert may_be_typical(work(HOT))
    assert not any(
        map(may_be_typical, (work(GREEDY), work(Sampling(0, logprobs=0)), work(HOT, proposed=(), parents=())))
    )


def test_more_guesses_are_accepted_and_greedy_answers_stay() -> None:
    """The shipped heads' guesses of hot answers; where the model is sure, there is little between the two."""
    heads = str(DEMO.parent / "medusa")
    engine = make_engine(DEMO, speculation="medusa", medusa=heads, kv_memory=16 << 20, max_model_len=600)
    stream, tokenizer = conversations(SEED), AutoTokenizer.from_pretrained(DEMO)
    prompts = [tokenizer.encode(prompt(tokenizer, next(stream)), add_special_tokens=False) for _ in range(12)]
    answers, accepted = [], []
    for typical in (False, True):
        for sampling, count in ((GREEDY, 4), (Sampling(seed=3, temperature=1.5), 12)):
            serving = Serving(engine, engine.proposer, 8, typical=typical)
            salt = f"{typical} {sampling.temperature}"
            answers.append(
                serving.run([Asked(each, 40, sampling, salt=salt, stops=(END,)) for each in prompts[:count]])
            )
            accepted.append(serving.guesses.foreseen / serving.guesses.guessed)
    assert answers[0] == answers[2] and answers[1] != answers[3]
    assert accepted[0] == accepted[2] and accepted[3] > accepted[1] + 0.2
