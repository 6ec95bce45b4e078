"""A range of ports is enough for a worker, or a sentence says how many it needs, before anything is loaded."""

import pytest

from contracts.errors import ConfigError
from infra.config.transfer import TransferOptions
from infra.network.bind_address import LOOPBACK_ADDRESS
from infra.network.listening import listen
from infra.network.ports import check_ports, listening_ports, parse_ports

TCP, UNIX = TransferOptions(), TransferOptions(kv_transport="ipc")


def test_ranges_have_both_ends() -> None:
    assert parse_ports("20000-20002") == range(20000, 20003)
    assert parse_ports("20000") == range(20000, 20001)
    assert not parse_ports("")


@pytest.mark.parametrize("text", ["20100-20000", "0-10", "1-65536", "a-b", "1-2-3", "-5", "5-", "٣-٤"])
def test_what_is_no_range_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^--ports: '{text}': is no range of ports such as 20000-20100$"):
        parse_ports(text)


def test_workers_listen_on_as_many_as_they_have_sockets() -> None:
    assert listening_ports("prefill", TCP) == 1
    assert (listening_ports("decode", TCP), listening_ports("decode", UNIX)) == (3, 2)


def test_too_few_ports_are_refused_with_the_number_needed() -> None:
    bind = LOOPBACK_ADDRESS._replace(ports=range(20000, 20002))
    said = "--ports: '20000-20001': has 2 of them, and a decode worker listens on 3: for gateways, for hand"
    with pytest.raises(ConfigError, match=said):
        check_ports(bind, "decode", TCP)


def test_taken_ports_are_refused_by_number() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        bind = LOOPBACK_ADDRESS._replace(ports=range(port, port + 1))
        said = f"'{port}-{port}': 0 of them free, other processes have {port}, and a prefill worker listens on 1"
        with pytest.raises(ConfigError, match=said):
            check_ports(bind, "prefill", TCP)
    check_ports(bind, "prefill", TCP)
