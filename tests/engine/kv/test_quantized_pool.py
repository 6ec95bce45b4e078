"""A quantized pool: what a block takes, and that its bytes leave, land and move as they lie."""

import pytest
import torch
from msgspec import structs

from contracts.errors import MessageError
from contracts.kinds import KVDtype
from contracts.kv.spec import PayloadConversion, WireForm
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.backends.triton.mover import TritonMover
from engine.kv.host.host_tier import HostTier
from engine.kv.mover import BlockMover
from engine.kv.pool import KVPool
from engine.kv.spec import make_spec
from engine.model.kv_layout import quantized_layer
from engine.plan import BlockMove
from engine.start.block_counts import PoolLoad, counts_in, sequences_in
from tests.engine.configs import dense
from tests.engine.kv.test_groups import CONFIG, COUNTS

CPU = torch.device("cpu")
FORMS = pytest.mark.parametrize("form", ["int8", "fp8"])


def make_pool(form: KVDtype, seed: int, mover: BlockMover | None = None) -> KVPool:
    """Makes a pool of groups of heads, windows and latent vectors, full of random bytes but for its null blocks."""
    spec = make_spec(CONFIG, torch.bfloat16, 8, "w", form)
    tier = HostTier(2, spec.groups[0], CPU)
    pool = KVPool(spec, COUNTS, CPU, mover or ReferenceMover(), ReferenceCodec(), tier)
    generator = torch.Generator().manual_seed(seed)
    for layer in pool.layers:
        memory = layer.view(torch.uint8)
        memory[1:] = torch.randint(256, memory[1:].shape, generator=generator, dtype=torch.uint8)
    return pool


@FORMS
@pytest.mark.parametrize(("dim", "share"), [(64, 128 / 66), (128, 256 / 130)])
def test_nearly_twice_the_sequences_fit(form: KVDtype, dim: int, share: float) -> None:
    config = dense(30, heads=6, kv_heads=3, head_dim=dim)
    plain, small = (make_spec(config, torch.bfloat16, 16, "w", each) for each in ("auto", form))
    assert plain.token_bytes() / small.token_bytes() == pytest.approx(share) and share > 1.9
    texts = PoolLoad(2048, in_flight=512)
    fitting = []
    for spec in (plain, small):
        counts = counts_in(spec, texts, 1 << 30)
        assert counts is not None
        fitting.append(sequences_in(spec, texts, counts))
    assert fitting[1] >= 1.9 * fitting[0]


@FORMS
def test_each_layer_has_its_values_and_its_scales(form: KVDtype) -> None:
    """12 numbers of a latent vector and 4 of its key have a scale each."""
    pool = make_pool(form, 0)
    for number, layer in enumerate(CONFIG.layers):
        view = quantized_layer(pool.layers[number], layer.attention)
        assert view is not None and view.form == form and view.block == 8
        assert view.values.shape[2:] == (8, sum(view.parts)) and view.scales.shape[2:] == (len(view.parts), 8)
        assert view.values[0, 0].numel() + 2 * view.scales[0, 0].numel() == pool.layers[number].shape[2]
        view.values.zero_(), view.scales.zero_()
        assert not pool.layers[number].view(torch.uint8).any(), "nothing but both is in a block"


@FORMS
@pytest.mark.parametrize("mover", [ReferenceMover(), TritonMover()], ids=["torch", "triton"])
def test_bytes_leave_land_and_move_as_they_lie(form: KVDtype, mover: BlockMover) -> None:
    source, target = make_pool(form, 1, mover), make_pool(form, 2, mover)
    for number, group in enumerate(source.spec.groups):
        last = COUNTS[number] - 1
        for layer in group.layers:
            target.write(number, layer, [last, 1], source.read(number, layer, [2, last]))
            here, there = (each.layers[layer].view(torch.uint8) for each in (source, target))
            assert torch.equal(there[[last, 1]], here[[2, last]])
    before = [layer.view(torch.uint8).clone() for layer in source.layers]
    source.move([BlockMove("out", 0, 3, 1), BlockMove("copy", 0, 2, 3), BlockMove("in", 0, 1, 2)])
    for layer in source.spec.groups[0].layers:
        assert torch.equal(source.layers[layer].view(torch.uint8)[[2, 3]], before[layer][[3, 2]])


@FORMS
def test_nothing_is_converted(form: KVDtype) -> None:
    pool = make_pool(form, 3)
    for theirs in (WireForm("bf16", 8), WireForm(form, 8), WireForm("int8", 16), WireForm("bf16", 8, "int8")):
        with pytest.raises(MessageError, match=f"cannot be converted to {form} in blocks of 8"):
            pool.convert(PayloadConversion(theirs, 0, pool.spec.groups[0].layers[0], [1], 0, 0), [bytes(64)])
    with pytest.raises(AssertionError, match="sent unchanged"):
        pool.read(0, pool.spec.groups[0].layers[0], [1], "int8")


def test_each_form_is_another_pool() -> None:
    specs = [make_spec(CONFIG, torch.bfloat16, 8, "w", form) for form in ("auto", "int8", "fp8")]
    specs.append(make_spec(CONFIG, torch.bfloat16, 16, "w", "int8"))
    assert len({spec.fingerprint() for spec in specs}) == len({spec.content() for spec in specs}) == 4
    fp32 = make_spec(CONFIG, torch.float32, 8, "w", "int8")
    assert fp32 == specs[1], "the bytes are the same, whatever the model computes in"
    groups = tuple(structs.replace(group, parts=(group.width("int8"),)) for group in fp32.groups)
    assert structs.replace(fp32, groups=groups).fingerprint() != fp32.fingerprint()
