"""Plans as tensors: block tables that are kept from step to step are those of each step."""

import random

import pytest

from engine.model.batch import BlockTables
from engine.plan import Work


def test_kept_block_tables_are_those_of_the_works() -> None:
    """Sequences come, leave, grow, shrink and exchange blocks in the lists that the step before was shown."""
    draw = random.Random(0)
    kept = BlockTables(0)
    tables: list[list[int]] = []
    shapes = set()
    for _ in range(400):
        for _ in range(draw.randrange(3)):
            tables.insert(draw.randrange(len(tables) + 1), [draw.randrange(1, 99) for _ in range(draw.randrange(1, 9))])
        for table in draw.sample(tables, len(tables) // 2):
            match draw.randrange(4):
                case 0:
                    table.append(draw.randrange(1, 99))
                case 1:
                    table[draw.randrange(len(table))] = draw.randrange(1, 99)
                case 2:
                    del table[1:]
                case 3:
                    tables.remove(table)
        if not tables:
            continue
        works = [Work(number, 0, [0], (table,)) for number, table in enumerate(tables)]
        counts = [draw.randrange(1, len(table) + 1) for table in tables]
        found = kept.of(works, counts)
        widest = max(counts)
        assert found.tolist() == [
            table[:count] + [0] * (widest - count) for table, count in zip(tables, counts, strict=True)
        ]
        shapes.add(found.shape)
    assert len(shapes) > 20


def test_a_table_shorter_than_its_sequence_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="shorter than its sequence"):
        BlockTables(0).of([Work(0, 0, [0] * 33, ([1, 2],))], [3])
