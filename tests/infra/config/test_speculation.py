"""Who proposes: by what was asked for and given, on decode and on prefill workers, and what is refused."""

from typing import Any

import pytest

from contracts.errors import ConfigError
from infra.config.engine import EngineConfig
from infra.config.speculation import Proposing, on_prefill, proposing


def settings(**options: Any) -> EngineConfig:
    return EngineConfig(model="m", **options)


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ({"speculation": "none"}, "none"),
        ({"speculation": "ngram"}, "ngram"),
        ({"speculation": "draft", "draft_model": "d"}, "draft"),
        ({"speculation": "eagle"}, "eagle"),  # by a layer of the checkpoint's own
        ({"speculation": "auto"}, "ngram"),
        ({"speculation": "auto", "draft_model": "d"}, "draft"),
        ({"speculation": "auto", "draft_model": "d", "medusa": "m"}, "medusa"),
        ({"speculation": "auto", "draft_model": "d", "medusa": "m", "eagle": "e"}, "eagle"),
    ],
)
def test_who_was_named_or_given_proposes(options: dict[str, Any], who: Proposing) -> None:
    assert proposing(settings(**options)) == who


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"speculation": "draft"}, "--speculation: 'draft': it needs --draft-model"),
        ({"speculation": "medusa", "eagle": "e"}, "--eagle: 'e': --speculation medusa does not read it"),
        ({"speculation": "none", "draft_model": "d"}, "--draft-model: 'd': --speculation none does not read it"),
        ({"speculation": "none", "speculative_tokens": 3}, "--speculative-tokens: 3: with --speculation none"),
        ({"acceptance": "typical"}, "--acceptance: 'typical': it is for guesses of Medusa heads, not of none"),
        ({"speculative_answers": 9}, "--speculative-answers: 9: it is for guesses from texts (ngram), not of none"),
        ({"speculation": "ngram", "acceptance": "typical"}, "--acceptance: 'typical': it is for guesses of Medusa"),
    ],
)
def test_what_does_not_go_together_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        proposing(settings(**options))
    assert str(caught.value).startswith(sentence)


def test_a_prefill_worker_proposes_nothing_and_keeps_a_head_that_has_kv() -> None:
    everything = settings(speculation="auto", speculative_tokens=4, draft_model="d", medusa="m", eagle="e")
    kept = on_prefill(everything)
    assert (proposing(kept), kept.eagle, kept.medusa, kept.draft_model) == ("eagle", "e", "", "")
    for given in (
        settings(speculation="ngram", speculative_answers=9),
        settings(speculation="medusa", medusa="m", acceptance="typical"),
    ):
        assert on_prefill(given) == settings(speculation="none")
