"""Block keys: the same everywhere, and of everything that the KV depends on."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.kv.block_hash import BlockKeys, block_key, pack, root_key
from tests.waiting import DEADLINE_S

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def keys(tokens: list[int], salt: str = "", block_tokens: int = 4) -> list[bytes]:
    found = BlockKeys(salt, block_tokens)
    found.cover(tokens, len(tokens))
    return found.keys


def test_keys_are_these_on_every_machine_and_in_every_version() -> None:
    assert root_key("").hex() == "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc"
    tenant = root_key("0123456789abcdef0123456789abcdef")
    assert tenant.hex() == "a11ffad442e9f0b21d96dbdd95ad756cc1b7d5c3ca3cce091c91480e490aaf39"
    assert [key.hex() for key in keys([0, 1, 2, 3, 2**32 - 1, 70_000, 6, 7])] == [
        "f0f6944e9ed77f82f1e3788e702f99bbd121874d82d06a5492ad9021de53e6bb",
        "deab0b88c35dc6db0aab8f33048451bd44f71d106785859572ab298b270d3c1c",
    ]


def test_every_adapter_has_keys_of_its_own_and_none_those_of_a_tenant() -> None:
    roots = [root_key(salt, adapter) for salt in ("", "a", "ab") for adapter in ("", "a", "b")]
    assert len(set(roots)) == 9
    assert root_key("a") == root_key("a", "")


def test_another_process_has_the_same_keys() -> None:
    code = (
        "from contracts.kv.block_hash import *; k = BlockKeys('s', 2); k.cover([1, 2, 3, 4], 4); print(k.keys[1].hex())"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        )
        assert done.stdout.strip() == keys([1, 2, 3, 4], "s", 2)[1].hex()


def test_tokens_are_packed_as_little_endian_u32() -> None:
    assert pack([1, 2**32 - 1]) == b"\x01\x00\x00\x00\xff\xff\xff\xff"
    assert block_key(root_key(""), pack([0, 1, 2, 3])) == keys([0, 1, 2, 3])[0]


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_is_no_u32_has_no_key(token: int) -> None:
    with pytest.raises(OverflowError):
        keys([0, 1, 2, token])


@given(tokens=TOKENS, other=st.integers(0, 2**32 - 1), data=st.data())
def test_a_key_depends_on_every_token_up_to_the_end_of_its_block_and_on_no_other(
    tokens: list[int], other: int, data: st.DataObject
) -> None:
    before = keys(tokens)
    assert len(before) == len(tokens) // 4 and all(len(key) == 32 for key in before)
    if tokens:
        at = data.draw(st.integers(0, len(tokens) - 1))
        changed = [*tokens[:at], other, *tokens[at + 1 :]]
        same = [first == second for first, second in zip(before, keys(changed), strict=True)]
        assert same == [tokens == changed or number < at // 4 for number in range(len(before))]


def test_tenants_share_no_key() -> None:
    owners = ["", "a", "b", "ab", "ba", "a\0", "\0\0\0\0"]
    found = {key for salt in owners for key in (root_key(salt), *keys(list(range(8)), salt))}
    assert len(found) == 3 * len(owners)


def test_blocks_of_another_size_have_other_keys() -> None:
    assert keys(list(range(8)), block_tokens=8)[0] not in keys(list(range(8)))


@given(tokens=TOKENS, data=st.data())
def test_bit_by_bit_the_keys_are_those_computed_at_once(tokens: list[int], data: st.DataObject) -> None:
    slowly = BlockKeys("s", 3)
    for count in [*sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5))), len(tokens)]:
        slowly.cover(tokens, count)
        assert len(slowly.keys) == len(slowly.packed) == count // 3
    slowly.cover(tokens, 0)  # nothing is forgotten
    assert slowly.keys == keys(tokens, "s", block_tokens=3)
    assert b"".join(slowly.packed) == pack(tokens[: len(tokens) // 3 * 3])


def test_a_copy_goes_on_by_itself() -> None:
    one = BlockKeys("s", 2)
    one.cover([1, 2], 2)
    other = one.copy()
    one.cover([1, 2, 3, 4], 4)
    other.cover([1, 2, 5, 6], 4)
    assert one.keys == keys([1, 2, 3, 4], "s", block_tokens=2)
    assert other.keys == keys([1, 2, 5, 6], "s", block_tokens=2)
