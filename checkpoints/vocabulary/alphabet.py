"""GPT-2's table of byte-level vocabularies, which writes each byte as a printable character."""

PRINTABLE_BYTES = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))


def byte_alphabet() -> dict[str, int]:
    """Returns 256 characters with their bytes: printable characters stand for themselves, others are from U+0100 on."""
    others = [byte for byte in range(256) if byte not in set(PRINTABLE_BYTES)]
    return {chr(byte): byte for byte in PRINTABLE_BYTES} | {chr(256 + place): byte for place, byte in enumerate(others)}


def spelled(data: bytes, alphabet: dict[int, str]) -> str:
    return "".join([alphabet[byte] for byte in data])
