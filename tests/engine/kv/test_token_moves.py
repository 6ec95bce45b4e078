"""Tokens' KV moves within a sequence: in every layer of every group, all read before any is written."""

import torch

from contracts.kv.spec import KVGroup, KVSpec
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.kv.pool import KVPool
from engine.model.kv_layout import QuantizedLayer
from engine.plan import TreeKVMoves

BLOCK, WIDTH, LAYERS = 8, 6, (0, 2)


def pool_of(groups: list[KVGroup], dtype: str) -> KVPool:
    spec = KVSpec(tuple(groups), "", "", dtype=dtype)
    return KVPool(spec, [9] * len(groups), torch.device("cpu"), ReferenceMover(), ReferenceCodec())


def test_tokens_of_two_sequences_move_in_all_layers_of_all_groups() -> None:
    """A target may be the source of another: what was there goes on."""
    groups = [
        KVGroup("full", LAYERS, BLOCK, BLOCK * 2 * WIDTH * 4, vectors=2),
        KVGroup("window", (1,), BLOCK, BLOCK * 4 * WIDTH * 4, vectors=4, window=20),
    ]
    pool = pool_of(groups, "fp32")
    for layer in pool.layers:
        layer[1:] = torch.randn(layer[1:].shape)
    before = [layer.clone() for layer in pool.layers]
    tables = ([3, 5, 1], [2, 4, 8]), ([6, 7], [0, 5])
    places = [(9, 7), (11, 8), (17, 9)], [(13, 12)]
    pool.move_tokens([TreeKVMoves(*each) for each in zip(tables, places, strict=True)])
    for group, of_group in enumerate(groups):
        for number in of_group.layers:
            expected = before[number].clone()
            for of_text, moved in zip(tables, places, strict=True):
                for source, target in moved:
                    there, here = of_text[group][source // BLOCK], of_text[group][target // BLOCK]
                    expected[here, :, target % BLOCK] = before[number][there, :, source % BLOCK]
            assert torch.equal(pool.layers[number], expected)


def test_quantized_tokens_take_their_scales_along() -> None:
    """Moves a latent vector and the key behind it: two parts, each with a scale."""
    parts = (4, 2)
    size = BLOCK * (sum(parts) + 2 * len(parts))
    pool = pool_of([KVGroup("latent", (0, 1), BLOCK, size, parts=parts)], "int8")
    for layer in pool.layers:
        layer[1:] = torch.randint(-128, 127, layer[1:].shape, dtype=torch.int8)
    before = [layer.clone() for layer in pool.layers]
    pool.move_tokens([TreeKVMoves(([3, 5],), [(9, 7), (10, 8)])])
    for layer, old in zip(pool.layers, before, strict=True):
        now, was = (QuantizedLayer("int8", each.view(torch.uint8), BLOCK, parts) for each in (layer, old))
        for (block, at), (there, offset) in {(3, 7): (5, 1), (5, 0): (5, 2)}.items():
            assert torch.equal(now.values[block, :, at], was.values[there, :, offset])
            assert torch.equal(now.scales[block, ..., at], was.scales[there, ..., offset])
        assert int((layer != old).any(-1).sum()) == 2  # vectors in two blocks, and none else
