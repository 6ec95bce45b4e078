"""Both ends' keys follow from the secret, and are told to nobody."""

import zmq

from infra.network.curve_keys import CurveKeys

SECRET, OTHER = b"0123456789abcdef", b"0123456789abcdeg"


def test_the_same_secret_gives_the_same_keys_and_another_gives_others() -> None:
    keys, again, other = CurveKeys.of(SECRET), CurveKeys.of(SECRET), CurveKeys.of(OTHER)
    assert keys == again
    fields = [
        (of.server_public, of.server_secret, of.client_public, of.client_secret) for of in (keys, other)
    ]  # every key differs from every other, of both ends and both deployments
    assert len({*fields[0], *fields[1]}) == 8


def test_public_and_secret_keys_belong_together() -> None:
    keys = CurveKeys.of(SECRET)
    assert zmq.curve_public(keys.server_secret) == keys.server_public
    assert zmq.curve_public(keys.client_secret) == keys.client_public


def test_secret_keys_are_not_shown() -> None:
    keys = CurveKeys.of(SECRET)
    shown = repr(keys) + str(keys)
    assert keys.client_public.decode() in shown
    assert keys.server_secret.decode() not in shown and keys.client_secret.decode() not in shown
