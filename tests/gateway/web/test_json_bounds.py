"""Objects, lists and values are counted as a parser finds them, however the bytes are cut."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.web.json_bounds import JSONCounts

TEXT = st.text(st.sampled_from('"\\[]{},:a\n\u00e9'), max_size=8)
TREES = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def opened(tree: Any) -> int:
    if not isinstance(tree, list | dict):
        return 0
    return 1 + sum(map(opened, tree.values() if isinstance(tree, dict) else tree))


def commas(tree: Any) -> int:
    if not isinstance(tree, list | dict):
        return 0
    inner = list(tree.values()) if isinstance(tree, dict) else tree
    return max(0, len(inner) - 1) + sum(map(commas, inner))


@given(TREES, st.booleans(), st.data())
def test_counts(tree: Any, ascii_only: bool, data: st.DataObject) -> None:
    text = json.dumps(tree, ensure_ascii=ascii_only).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    counts = JSONCounts()
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        counts.push(text[begin:end])
    assert (counts.objects, counts.values) == (opened(tree), 1 + commas(tree))
