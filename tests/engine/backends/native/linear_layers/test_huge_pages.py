"""Memory in huge pages: pieces that nobody else has, for as long as there is a tensor of them."""

import gc

import torch

from engine.backends.native.linear_layers.huge_pages import CACHE_LINE_BYTES, MAPPING_BYTES, HugePages


def test_pieces_begin_at_a_line_and_do_not_overlap() -> None:
    pages = HugePages()
    sizes = [1, CACHE_LINE_BYTES, 65, 0, MAPPING_BYTES // 2, MAPPING_BYTES // 2 + 1, MAPPING_BYTES // 2, 100]
    pieces = [pages.empty(size) for size in sizes]
    for number, piece in enumerate(pieces):
        assert piece.numel() == sizes[number] and (not sizes[number] or piece.data_ptr() % CACHE_LINE_BYTES == 0)
        piece.fill_(number + 1)
    for number, piece in enumerate(pieces):
        assert bool((piece == number + 1).all()), number


def test_a_piece_outlives_the_others_and_the_pages() -> None:
    pages = HugePages()
    others, last = [pages.empty(1000) for _ in range(3)], pages.empty(1000)
    last.fill_(7)
    del others, pages
    gc.collect()
    assert torch.equal(last, torch.full((1000,), 7, dtype=torch.uint8))
