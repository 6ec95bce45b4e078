"""Earlier answers are guessed from by those of their salt only, and are bounded; one that comes again is foreseen."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.blocks.manager import BlockManager
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.speculation import Speculation
from engine.speculation.proposers.earlier_answers import MAX_SALTS, PROMPT_TAIL_TOKENS, EarlierAnswers
from engine.speculation.proposers.ngram import NGramProposer
from engine.speculation.proposers.suffixes import MAX_MATCH_TOKENS
from tests.engine.blocks.test_manager import spec
from tests.engine.schedule.scheduler_by_hand import GREEDY, job
from tests.engine.schedule.test_prompt_scores import run
from tests.engine.strict_executor import StrictExecutor, reference

QUESTION = list(range(100, 100 + PROMPT_TAIL_TOKENS))
ANSWER = list(range(500, 540))


def test_an_answer_is_foreseen_from_its_question_on() -> None:
    earlier = EarlierAnswers(4096)
    earlier.keep("a", QUESTION + ANSWER, len(QUESTION))
    for at in range(len(ANSWER) - 8):
        guesses = earlier.find("a", [1, 2, 3, *QUESTION, *ANSWER[:at]], 8, 0)
        assert guesses.tokens == ANSWER[at : at + 8] and guesses.evidence == MAX_MATCH_TOKENS


def test_a_longer_match_elsewhere_counts_and_the_newest_of_equals() -> None:
    earlier = EarlierAnswers(4096)
    earlier.keep("a", [7, 1, 2, 3, 10, 11], 0)
    earlier.keep("a", [8, 1, 2, 3, 20, 21], 0)
    assert earlier.find("a", [1, 2, 3], 2, 0).tokens == [20, 21]
    assert earlier.find("a", [7, 1, 2, 3], 2, 0).tokens == [10, 11]
    assert earlier.find("a", [7, 1, 2, 3], 2, 4).tokens == []


def test_the_newest_answers_are_kept() -> None:
    """Each of half the tokens: an older text makes room for a newer one."""
    earlier, half = EarlierAnswers(256), 128
    answers = [[1000 * number + place for place in range(half)] for number in range(4)]
    for answer in answers:
        earlier.keep("a", answer, 0)
    found = [bool(earlier.find("a", answer[:20], 4, 0).tokens) for answer in answers]
    assert found == [False, False, True, True]


def test_salts_that_were_not_asked_for_make_room() -> None:
    earlier = EarlierAnswers(128)
    for number in range(MAX_SALTS):
        earlier.keep(str(number), ANSWER, 0)
    assert earlier.find("0", ANSWER[:9], 2, 0).tokens
    earlier.keep("another", ANSWER, 0)
    assert earlier.find("0", ANSWER[:9], 2, 0).tokens
    assert not earlier.find("1", ANSWER[:9], 2, 0).tokens


def test_a_request_that_comes_again_takes_few_steps_and_another_tenants_as_many_as_the_first() -> None:
    blocks = BlockManager(spec(4), [101])
    engine = Scheduler(
        blocks,
        SchedulerLimits(max_batch_tokens=64, max_sequences=8, max_model_len=1000),
        speculation=Speculation(blocks, NGramProposer(EarlierAnswers(512)), 8),
    )
    executor, steps, answers = StrictExecutor(spec(4)), [], []
    for salt in ("one", "one", "another", "another"):
        sequence, before = job(20, 60, salt=salt), engine.load().steps
        engine.add(sequence)
        run(engine, sequence, executor=executor)
        answers.append(sequence.tokens.tolist())
        steps.append(engine.load().steps - before)
    assert answers == [reference(answers[0][:20], 20, GREEDY, 0, 80, stop=False)] * 4
    assert steps[0] == steps[2] > 40 and steps[1] == steps[3] < 12


class Apart(RuleBasedStateMachine):
    """Salts whose tokens are their own: whoever is guessed another's has seen it."""

    def __init__(self) -> None:
        super().__init__()
        self.most = random.Random(1).randrange(1, 80)
        self.earlier = EarlierAnswers(self.most)

    @rule(
        salt=st.integers(0, 80), words=st.lists(st.integers(0, 3), min_size=1, max_size=120), prompt=st.integers(0, 90)
    )
    def keep(self, salt: int, words: list[int], prompt: int) -> None:
        tokens = [4 * salt + word for word in words]
        self.earlier.keep(str(salt), tokens, min(prompt, len(tokens)))

    @rule(salt=st.integers(0, 80), words=st.lists(st.integers(0, 3), max_size=30), most=st.integers(1, 16))
    def guess(self, salt: int, words: list[int], most: int) -> None:
        guesses = self.earlier.find(str(salt), [4 * salt + word for word in words], most, 0)
        assert len(guesses.tokens) <= most
        assert all(token // 4 == salt for token in guesses.tokens)
        foreign = self.earlier.find(str(salt), [4 * (salt + 1) + word for word in words], most, 0)
        assert not foreign.tokens

    @invariant()
    def is_bounded(self) -> None:
        counts = self.earlier.counts()
        assert len(counts) <= MAX_SALTS and all(count <= max(2, self.most) for count in counts.values())


TestApart = Apart.TestCase
TestApart.settings = settings(max_examples=60, stateful_step_count=40)
