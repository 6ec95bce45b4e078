"""Verifies draft tokens: their work is sampled at several rows, and draws after accepted draft tokens are valid.

Row i is sampled with the randomness of its own output index, after the adjustments (penalties, masks) that the i draft
tokens before it would have caused. While the draft tokens equal the draws, each draw is the one that a step without
draft tokens would have made; draws after the first wrong draft token are dropped. Draft tokens therefore never change
the output.

Draft tokens may form a tree (`Work.parents`). A row is then sampled as if the draft tokens on its path had been drawn,
and the valid rows are found by following the draws from parent to child.
"""

from collections.abc import Sequence

from msgspec import structs

from engine.plan import Work

NOT_FINITE, DRAWN, NONE_LEFT = range(3)
"""Outcome of a draw: logits not finite, a token drawn, or every token forbidden."""


def row_count(work: Work) -> int:
    return 1 + len(work.proposed)


def works_by_row(works: Sequence[Work]) -> Sequence[Work]:
    """Returns one work for each row of logits of the sampled `works`.

    A work's first row is the work itself without draft tokens. In every other row `proposed` is the path of draft
    tokens up to that row: it is sampled as if they were the last tokens of the sequence's text, `tokens`.
    """
    if not any(work.proposed for work in works):
        return works
    return [row for work in works for row in _rows_of(work)]


def _rows_of(work: Work) -> list[Work]:
    if not work.proposed:
        return [work]
    return [
        structs.replace(work, proposed=path, parents=(), output_index=work.output_index + len(path))
        for path in ((), *draft_paths(work))
    ]


def draft_paths(work: Work) -> list[tuple[int, ...]]:
    """Returns for each draft token its path: the draft tokens from the end of the text to itself."""
    if not work.parents:
        return [work.proposed[: count + 1] for count in range(len(work.proposed))]
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(work.proposed, work.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def parents_of(work: Work) -> Sequence[int]:
    """Returns the parent of each draft token, by index; -1: the last token of the text."""
    return work.parents or range(-1, len(work.proposed) - 1)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def verified_rows(work: Work, draws: Sequence[int], outcomes: Sequence[int]) -> tuple[list[int], int]:
    """Returns the rows with valid draws, in text order, and the outcome of the whole work.

    `draws` and `outcomes` are of all rows of the work. Only valid rows can fail it: a row whose logits are not finite
    does; a row without allowed tokens ends the path before it, and fails the work if it is the first row.
    """
    rows = _path_of_draws(work, draws)
    for count, row in enumerate(rows):
        if outcomes[row] == NOT_FINITE or (outcomes[row] == NONE_LEFT and row == 0):
            return [], outcomes[row]
        if outcomes[row] == NONE_LEFT:
            return rows[:count], DRAWN
    return rows, DRAWN


def _path_of_draws(work: Work, draws: Sequence[int]) -> list[int]:
    """Returns the path of draws: row 0, the row of the draft token drawn there, and so on."""
    if not work.parents:
        return list(range(min(common_prefix(work.proposed, draws) + 1, len(draws))))
    rows = [0]
    for index, (parent, token) in enumerate(zip(work.parents, work.proposed, strict=True)):
        if parent + 1 == rows[-1] and token == draws[rows[-1]]:
            rows.append(index + 1)
    return rows


def accepted_drafts(work: Work, tokens: Sequence[int]) -> list[int]:
    """Returns the indices of the draft tokens that equal the step's final `tokens`, each the parent of the next.

    `tokens` are the valid draws, or their replacements by a grammar; they may be more or fewer than the path.
    """
    if not work.parents:
        return list(range(common_prefix(work.proposed, tokens)))
    accepted: list[int] = []
    for index, (parent, token) in enumerate(zip(work.parents, work.proposed, strict=True)):
        place = len(accepted)
        if place < len(tokens) and parent == (accepted[-1] if accepted else -1) and token == tokens[place]:
            accepted.append(index)
    return accepted


def judged_drafts(work: Work, accepted: Sequence[int]) -> list[tuple[int, bool]]:
    """Returns the tested draft tokens in order: (index, accepted).

    A draft token is tested if its parent was accepted and no earlier sibling was.
    """
    tested, last, right = [], -1, frozenset(accepted)
    for index, parent in enumerate(parents_of(work)):
        if parent == last:
            tested.append((index, index in right))
            if index in right:
                last = index
    return tested


def kv_moves(work: Work, accepted: Sequence[int], tokens: int) -> list[tuple[int, int]]:
    """Returns (from, to) for each accepted tree KV that is out of place, as positions in the sequence, in order.

    The step gave `tokens` tokens; the KV of the last is computed by the next step. Only draft tokens of a tree may be
    out of place; a chain is in order.
    """
    if not work.parents:
        return []
    first = work.start + len(work.token_ids) - len(work.proposed)
    return [(first + index, first + at) for at, index in enumerate(accepted[: max(0, tokens - 1)]) if index != at]
