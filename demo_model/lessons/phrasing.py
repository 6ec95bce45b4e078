"""Makes questions as people really type them: without capitals, without punctuation, with a please."""

from random import Random

from demo_model.texts import section

_BEFORE, _AFTER = section("phrases", "before"), section("phrases", "after")


def casual(rng: Random, ask: str) -> str:
    """Returns the question as one of many people would type it."""
    if rng.random() < 0.10:
        before = rng.choice(_BEFORE)
        ask = f"{before} {ask[:1].lower() + ask[1:] if before == 'Please' else ask}"
    if rng.random() < 0.08:
        ask = f"{ask} {rng.choice(_AFTER)}"
    if rng.random() < 0.30:
        ask = ask.lower()
    if rng.random() < 0.30:
        ask = ask.rstrip(" .!?")
    return ask
