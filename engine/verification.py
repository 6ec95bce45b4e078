"""Verifies guesses: a work that has some is drawn from at several rows, and keeps the draws that the guesses foresaw.

Row i is drawn from with the randomness of its own output index, and after the adjustments that the i guesses before it
would have brought about. As long as these are what was drawn, it is the draw that would have been made without any
guess; what is behind the first guess that was wrong is forgotten. So a guess costs time, and changes nothing.
"""

from collections.abc import Sequence

from msgspec import structs

from engine.plan import Work

NOT_FINITE, DRAWN, NONE_LEFT = range(3)
"""What comes of a draw: its logits were not finite, it is a token, or all tokens were forbidden."""

MOST_ROWS = 64
"""Rows of one work at most; each has a name of its own."""


def row_count(work: Work) -> int:
    """Counts the rows of logits that a sampled work is drawn from."""
    return 1 + len(work.proposed)


def with_rows(works: Sequence[Work]) -> Sequence[Work]:
    """Returns for each row of logits of sampled `works` a work that is drawn from there, without guesses.

    The first row of a work is the work's own. Each other one has a text of its own, that with the guesses before it,
    and stands for a sequence that nobody else is: what is kept of sequences from step to step finds it new.
    """
    if not any(work.proposed for work in works):
        return works
    return [row for work in works for row in _rows_of(work)]


def _rows_of(work: Work) -> list[Work]:
    assert len(work.proposed) < MOST_ROWS, "more guesses than rows have names"
    if not work.proposed:
        return [work]
    rows = [structs.replace(work, proposed=())]
    for count in range(1, row_count(work)):
        tokens = None if work.tokens is None else [*work.tokens, *work.proposed[:count]]
        name = -(MOST_ROWS * work.sequence + count)
        rows.append(
            structs.replace(
                work, sequence=name, output_index=work.output_index + count, tokens=tokens, proposed=(), propose=0
            )
        )
    return rows


def foreseen(proposed: Sequence[int], tokens: Sequence[int]) -> int:
    """Counts the leading guesses that are what came."""
    count = 0
    for guess, token in zip(proposed, tokens, strict=False):
        if guess != token:
            break
        count += 1
    return count


def drawn(work: Work, tokens: list[int], outcomes: Sequence[int]) -> tuple[list[int], int]:
    """Returns the draws that count of a work with guesses, and what came of it, from those of its rows.

    A row behind a wrong guess is not looked at. One whose logits are not finite, but which counts, fails the work; one
    in which nothing may be drawn ends what there is, and fails it if it is the first.
    """
    kept = min(foreseen(work.proposed, tokens) + 1, len(tokens))
    for row, outcome in enumerate(outcomes[:kept]):
        if outcome == NOT_FINITE or (outcome == NONE_LEFT and row == 0):
            return [], outcome
        if outcome == NONE_LEFT:
            return tokens[:row], DRAWN
    return tokens[:kept], DRAWN
