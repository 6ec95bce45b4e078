"""Spells bytes as byte-level vocabularies do: each byte by a character that can be seen (GPT-2's table)."""

PRINTABLE_BYTES = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


def byte_alphabet() -> dict[str, int]:
    """Returns the byte of each of the 256 characters: printable characters are themselves, others from U+0100 on."""
    others = [byte for byte in range(256) if byte not in set(PRINTABLE_BYTES)]
    return {chr(byte): byte for byte in PRINTABLE_BYTES} | {chr(256 + place): byte for place, byte in enumerate(others)}


def spelled(data: bytes, alphabet: dict[int, str]) -> str:
    """Returns bytes in the alphabet, given as the character of each byte."""
    return "".join([alphabet[byte] for byte in data])
