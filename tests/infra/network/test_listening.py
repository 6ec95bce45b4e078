"""A listener is had at once, or refused by the option that is wrong."""

import socket

import pytest

from contracts.errors import ConfigError
from infra.network.listening import http_url, listen, url_of


def test_port_zero_is_a_free_port() -> None:
    with listen("127.0.0.1", 0) as one, listen("127.0.0.1", 0) as other:
        assert url_of(one) != url_of(other)
        socket.create_connection(one.getsockname(), 5).close()


def test_a_port_in_use_is_named_by_its_option() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^--dashboard-port: {port}: another process"):
            listen("127.0.0.1", port, "--dashboard-port")


@pytest.mark.parametrize("host", ["203.0.113.9", "no.such.host.invalid"])
def test_a_host_that_is_not_here_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--host: '{host}'"):
        listen(host, 0)


def test_the_url_is_one_that_a_client_can_open() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")
    assert http_url("::1", 80) == "http://[::1]:80"
    assert http_url("[::]", 80) == "http://[::1]:80"
    assert http_url("", 80) == "http://127.0.0.1:80"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_is_listened_on_with_brackets_and_without(host: str) -> None:
    with listen(host, 0) as listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
        socket.create_connection(("::1", listener.getsockname()[1]), 5).close()


def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    with listen("::", 0) as listener:
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), 5).close()
