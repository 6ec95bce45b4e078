"""Verifies guesses: a work that has some is drawn from at several rows, and keeps the draws that the guesses foresaw.

Row i is drawn from with the randomness of its own output index, and after the adjustments that the i guesses before it
would have brought about. As long as these are what was drawn, it is the draw that would have been made without any
guess; what is behind the first guess that was wrong is forgotten. So a guess costs time, and changes nothing.

Guesses may branch (`Work.parents`). Then a row is drawn from as if the guesses on its way had been drawn, and the draws
that count are found by following them from guess to guess.
"""

from collections.abc import Sequence

from msgspec import structs

from engine.plan import Work

NOT_FINITE, DRAWN, NONE_LEFT = range(3)
"""What comes of a draw: its logits were not finite, it is a token, or all tokens were forbidden."""


def row_count(work: Work) -> int:
    """Counts the rows of logits that a sampled work is drawn from."""
    return 1 + len(work.proposed)


def with_rows(works: Sequence[Work]) -> Sequence[Work]:
    """Returns for each row of logits of sampled `works` a work that is drawn from there.

    The first row of a work is the work's own, without guesses. Each other one has as `proposed` the guesses before it:
    it is drawn from as if these were the last tokens of its text, `tokens`, which is the sequence's own.
    """
    if not any(work.proposed for work in works):
        return works
    return [row for work in works for row in _rows_of(work)]


def _rows_of(work: Work) -> list[Work]:
    if not work.proposed:
        return [work]
    return [
        structs.replace(work, proposed=way, parents=(), output_index=work.output_index + len(way))
        for way in ((), *ways(work))
    ]


def ways(work: Work) -> list[tuple[int, ...]]:
    """Returns of each guess the guesses that lead there, itself the last."""
    if not work.parents:
        return [work.proposed[: count + 1] for count in range(len(work.proposed))]
    found: list[tuple[int, ...]] = []
    for guess, parent in zip(work.proposed, work.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), guess))
    return found


def foreseen(proposed: Sequence[int], tokens: Sequence[int]) -> int:
    """Counts the leading guesses that are what came."""
    count = 0
    for guess, token in zip(proposed, tokens, strict=False):
        if guess != token:
            break
        count += 1
    return count


def rows_that_count(work: Work, tokens: Sequence[int]) -> list[int]:
    """Returns the rows that tell what comes, in its order, of the `tokens` that were drawn from all rows.

    The first is row 0; each other one is that of the guess that the row before it gave.
    """
    if not work.parents:
        return list(range(min(foreseen(work.proposed, tokens) + 1, len(tokens))))
    rows = [0]
    for guess, (parent, token) in enumerate(zip(work.parents, work.proposed, strict=True)):
        if parent + 1 == rows[-1] and token == tokens[rows[-1]]:
            rows.append(guess + 1)
    return rows


def drawn(work: Work, tokens: list[int], outcomes: Sequence[int]) -> tuple[list[int], int]:
    """Returns the rows whose draws count of a work with guesses, and what came of it, from the draws of its rows.

    A row behind a wrong guess is not looked at. One whose logits are not finite, but which counts, fails the work; one
    in which nothing may be drawn ends what there is, and fails it if it is the first.
    """
    rows = rows_that_count(work, tokens)
    for count, row in enumerate(rows):
        if outcomes[row] == NOT_FINITE or (outcomes[row] == NONE_LEFT and row == 0):
            return [], outcomes[row]
        if outcomes[row] == NONE_LEFT:
            rows = rows[:count]
            break
    return rows, DRAWN


def judged(work: Work, tokens: Sequence[int]) -> list[tuple[int, bool]]:
    """Returns the guesses that were judged by what came, `tokens`, in their order, and which of them came true.

    A guess is judged if the one that it goes on from came true, and no sibling before it did.
    """
    found, at, place = [], -1, 0
    for guess, (parent, token) in enumerate(zip(parents_of(work), work.proposed, strict=True)):
        if parent == at:
            right = place < len(tokens) and token == tokens[place]
            found.append((guess, right))
            if right:
                at, place = guess, place + 1
    return found


def accepted(work: Work, tokens: Sequence[int]) -> Sequence[int]:
    """Returns the guesses that came true, one behind the other, by what came, `tokens`."""
    if not work.parents:
        return range(foreseen(work.proposed, tokens))
    return [guess for guess, right in judged(work, tokens) if right]


def parents_of(work: Work) -> Sequence[int]:
    """Returns of each guess the one that it goes on from; -1: the last own token."""
    return work.parents or range(-1, len(work.proposed) - 1)


def strays(work: Work, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Returns where KV of guesses that came lies, and where it belongs, as places of the sequence, in their order.

    `tokens` are what came; the KV of the last of them is computed by the next step. Only guesses that branch may lie
    elsewhere: others stand in the way.
    """
    if not work.parents:
        return []
    first = work.start + len(work.token_ids) - len(work.proposed)
    came = accepted(work, tokens[:-1])
    return [(first + guess, first + place) for place, guess in enumerate(came) if guess != place]
