"""The host tier's memory: slots keep what they were given, and a file is private, has its room at once, and is gone."""

import mmap
import os
from pathlib import Path

import pytest
import torch

from contracts.errors import ConfigError
from engine.kv.host.host_tier import HostTier
from engine.kv.mover import WORD_DTYPE
from engine.kv.spec import make_spec
from tests.engine.kv.test_pool import CONFIG

SPEC = make_spec(CONFIG, torch.bfloat16, 16, "w")
WORDS = SPEC.groups[0].block_bytes // WORD_DTYPE.itemsize
CPU = torch.device("cpu")


def some(count: int) -> torch.Tensor:
    return torch.randint(1 << 62, (count, len(CONFIG.layers), WORDS), generator=torch.Generator().manual_seed(count))


def mapped(directory: Path) -> bool:
    """Whether this process maps a file below `directory`, with a name or without."""
    return str(directory) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("in_file", [False, True])
def test_slots_keep_what_they_were_given(in_file: bool, tmp_path: Path) -> None:
    tier = HostTier(9, SPEC.groups[0], CPU, str(tmp_path) if in_file else "")
    assert tier.bytes == 9 * SPEC.block_bytes()
    first, second = some(5), some(3)
    tier.put([8, 2, 3, 4, 0], first)
    tier.put([3, 5, 6], second)
    assert torch.equal(tier.get([0, 2, 4, 8]), first[[4, 1, 3, 0]])
    assert torch.equal(tier.get([5, 6, 3, 3]), second[[1, 2, 0, 0]])
    assert not tier.get([1, 7]).any()
    for wrong in (-1, 9):
        with pytest.raises(AssertionError):
            tier.get([wrong])


def test_one_block_is_one_piece_of_memory(tmp_path: Path) -> None:
    tier = HostTier(4, SPEC.groups[0], CPU)
    tier.put([2], some(1))
    assert tier.get([2]).numpy().tobytes() == some(1).numpy().tobytes()
    assert tier._memory.stride() == (len(CONFIG.layers) * WORDS, WORDS, 1)


def test_a_file_is_the_user_s_own_has_its_room_at_once_and_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[int] = []

    def kept(descriptor: int, size: int, map_it: type[mmap.mmap] = mmap.mmap) -> mmap.mmap:
        files.append(os.dup(descriptor))
        return map_it(descriptor, size)

    monkeypatch.setattr("engine.kv.host.host_tier.mmap.mmap", kept)
    slots = (8 << 20) // SPEC.block_bytes()
    tier = HostTier(slots, SPEC.groups[0], CPU, str(tmp_path))
    assert list(tmp_path.iterdir()) == [] and mapped(tmp_path)
    tier.put([slots - 1], some(1))
    found = os.fstat(files[0])
    os.close(files[0])
    assert found.st_mode & 0o777 == 0o600 and found.st_nlink == 0
    assert found.st_size == tier.bytes <= found.st_blocks * 512
    del tier
    assert not mapped(tmp_path)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in ("missing", "file"):
        with pytest.raises(ConfigError, match=f"--host-kv-directory: '.*/{wrong}': no file of"):
            HostTier(2, SPEC.groups[0], CPU, str(tmp_path / wrong))
