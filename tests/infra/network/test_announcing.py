"""What a worker listens on and announces, on hosts of several addresses; bad input is a sentence."""

from ipaddress import ip_address

import pytest

from contracts.errors import ConfigError
from infra.config.place import PlaceOptions
from infra.network.announcing import choose_bind_address
from infra.network.bind_address import BindAddress
from infra.network.interfaces import OwnAddress, own_addresses

OWN = [
    OwnAddress(interface, ip_address(address))
    for interface, address in (
        ("lo", "127.0.0.1"),
        ("eth0", "10.0.0.2"),
        ("eth1", "192.168.7.2"),
        ("lo", "::1"),
        ("eth0", "fe80::2"),
        ("eth0", "fd00::2"),
        ("ib0", "fe80::3"),
    )
]
HERE = "lo 127.0.0.1, eth0 10.0.0.2, eth1 192.168.7.2, lo ::1, eth0 fe80::2, eth0 fd00::2, ib0 fe80::3"
NAMES = {"node-a": "10.0.0.2", "proxy": "203.0.113.5", "itself": "127.0.1.1"}


def bind(host: str, announce: str) -> BindAddress:
    return choose_bind_address(PlaceOptions(host=host, announce=announce), OWN, NAMES.get)


@pytest.mark.parametrize(
    ("host", "announce", "listens", "announces"),
    [
        ("", "", "127.0.0.1", "127.0.0.1"),
        ("::1", "", "::1", "::1"),
        ("[fd00::2]", "", "fd00::2", "fd00::2"),
        ("", "eth0", "10.0.0.2", "10.0.0.2"),
        ("0.0.0.0", "eth0", "0.0.0.0", "10.0.0.2"),
        ("fd00::2", "eth0", "fd00::2", "fd00::2"),
        ("", "lo", "127.0.0.1", "127.0.0.1"),
        ("", "192.168.0.0/16", "192.168.7.2", "192.168.7.2"),
        ("", "0.0.0.0/0", "10.0.0.2", "10.0.0.2"),
        ("::", "::/0", "::", "fd00::2"),
        ("::", "10.0.0.0/8", "::", "10.0.0.2"),
        ("", "127.0.0.0/8", "127.0.0.1", "127.0.0.1"),
        ("", "[fd00::2]", "fd00::2", "fd00::2"),
        ("127.0.0.9", "", "127.0.0.9", "127.0.0.9"),
        ("0.0.0.0", "203.0.113.5", "0.0.0.0", "203.0.113.5"),
        ("10.0.0.2", "proxy", "10.0.0.2", "proxy"),
        ("", "node-a", "10.0.0.2", "node-a"),
    ],
)
def test_what_is_listened_on_and_announced(host: str, announce: str, listens: str, announces: str) -> None:
    found = bind(host, announce)
    assert (found.host, found.advertised) == (listens, announces)


@pytest.mark.parametrize(
    ("host", "announce", "sentence"),
    [
        ("", "eth9", f"--announce: 'eth9': is no interface of this host, which has {HERE}, and no host name that has"),
        ("", "172.16.0.0/12", f"--announce: '172.16.0.0/12': no address of this host is in it: it has {HERE}"),
        ("", "fe80::/10", "no address of this host is in it"),
        ("", "10.0.0.0/33", "--announce: '10.0.0.0/33': is no network such as 10.0.0.0/8 or fd00::/8"),
        ("", "ib0", "--announce: 'ib0': has no address that others can connect to: fe80::3"),
        ("", "203.0.113.5", "is no address of this host, which has .*; --host says what to listen on"),
        ("", "itself", "is no address of this host, which has .*; --host says what to listen on"),
        ("", "10.0.0.2:20000", "is no interface, network such as 10.0.0.0/8, address or host name; --ports is for"),
        ("", "::", "--announce: '::': no other host can connect to it"),
        ("127.0.0.1", "eth0", "--announce: 'eth0': is 10.0.0.2 here, where --host 127.0.0.1 does not listen"),
        ("0.0.0.0", "fd00::2", "is fd00::2 here, where --host 0.0.0.0 does not listen"),
        ("0.0.0.0", "", f"--host: '0.0.0.0': no other host can connect to it; --announce sets .*: {HERE}"),
        ("eth0", "", f"--host: 'eth0': is no address; this host has {HERE}"),
        ("10.0.0.3", "", f"--host: '10.0.0.3': is no address of this host, which has {HERE}"),
    ],
)
def test_what_nobody_could_connect_to_is_a_sentence(host: str, announce: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("[", r"\[")):
        bind(host, announce)


def test_the_system_tells_its_addresses() -> None:
    assert OwnAddress("lo", ip_address("127.0.0.1")) in own_addresses()


def test_endpoints_have_brackets_around_ipv6() -> None:
    assert bind("::1", "").endpoint(5) == "tcp://[::1]:5"
    assert bind("", "eth0").endpoint(5) == "tcp://10.0.0.2:5"
