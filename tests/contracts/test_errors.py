"""A setting that cannot work is named as a person writes it."""

import pytest

from contracts.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("kv_memory", "--kv-memory"),  # a field of a config
        ("model", "--model"),
        ("--kv-memory", "--kv-memory"),
        ("--tls-cert", "--tls-cert"),
        ("TMPDIR", "TMPDIR"),
        ("baton key", "baton key"),
    ],
)
def test_a_field_is_named_by_its_option(key: str, named: str) -> None:
    assert str(ConfigError(key, "x", "why")) == f"{named}: 'x': why"
