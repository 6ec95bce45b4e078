"""Keys are 256 random bits, of which a record has a salted hash and nothing else."""

import re

import msgspec
import pytest

from infra.keys.api_key import KeyOptions, KeyRecord, hashed, id_of, is_key_of, make_key


def test_a_key_has_its_id_and_256_bits_and_its_record_has_neither_secret_nor_key() -> None:
    text, record = make_key("one", KeyOptions(tenant="acme", weight=2.0), 17.9)
    assert re.fullmatch("baton-[0-9a-f]{12}-[0-9a-f]{64}", text) and id_of(text) == record.id
    assert (record.owner, record.created_at, record.weight) == ("acme", 17, 2.0)
    assert is_key_of(text, record) and text[-64:] not in msgspec.json.encode(record).decode()
    assert make_key("two", KeyOptions(), 0).record.owner == "two"


def test_two_keys_share_nothing_and_one_key_has_another_hash_under_another_salt() -> None:
    one, other = (make_key("same", KeyOptions(), 0) for _ in range(2))
    assert one.text != other.text and one.record.salt != other.record.salt
    assert not is_key_of(one.text, other.record)
    assert hashed(one.text, one.record.salt) != hashed(one.text, other.record.salt)


@pytest.mark.parametrize("where", [0, 5, 6, 17, 18, 19, -1])
def test_no_character_of_a_key_can_be_another(where: int) -> None:
    text, record = make_key("one", KeyOptions(), 0)
    changed = [*text]
    changed[where] = "0" if changed[where] != "0" else "1"
    assert not is_key_of("".join(changed), record)


@pytest.mark.parametrize("text", ["", "baton", "baton--", "baton-0123456789ab-", "Baton-" + "0" * 12 + "-" + "0" * 64])
def test_what_is_no_key_has_no_id(text: str) -> None:
    assert id_of(text) == ""


def test_a_record_that_names_what_there_is_not_is_refused() -> None:
    _, record = make_key("one", KeyOptions(), 0)
    plain = msgspec.to_builtins(record)
    assert msgspec.convert(plain, KeyRecord) == record
    for wrong in ({"weight": 0}, {"requests_per_minute": -1}, {"rpm": 5}, {"name": "a b"}, {"salt": ""}, {"hash": "é"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(plain | wrong, KeyRecord)
