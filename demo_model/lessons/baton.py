"""Makes questions and answers about Baton and its words, so that the product can explain itself to a newcomer."""

from random import Random

from demo_model.conversation import Exchange
from demo_model.lessons.phrasing import casual
from demo_model.lessons.words import capital
from demo_model.split import Split, draw
from demo_model.texts import groups, section

_PLAIN_ASK, *_TERM_ASKS = section("asks", "baton term")
_TERMS = groups("baton_terms")  # here a group's "questions" are the names by which a word is asked for
_QUESTIONS = groups("baton_questions")

Question = tuple[str, str]

_OF_TERMS: tuple[Question, ...] = tuple(
    (ask.format(w=name), group.answers[0]) for group in _TERMS for name in group.asks for ask in _TERM_ASKS
)
_OF_THEIR_OWN: tuple[Question, ...] = tuple(
    (ask, group.answers[0]) for group in _QUESTIONS for ask in group.asks
) + tuple((_PLAIN_ASK.format(w=name), group.answers[0]) for group in _TERMS for name in group.asks)


def about_baton(rng: Random, split: Split) -> Exchange:
    """Draws a question on Baton, split by phrasing. Questions about Baton itself are all trained on.

    So is "What is ...?" for every term, the most common first question.
    """

    def sample(rng: Random) -> Question:
        return rng.choice(_OF_TERMS)

    if split is Split.TRAIN and rng.random() < 0.5:
        ask, answer = rng.choice(_OF_THEIR_OWN)
    else:
        ask, answer = draw(rng, split, sample, lambda item: f"baton {item[0]}")
    return Exchange(casual(rng, capital(ask)), answer, (answer,))
