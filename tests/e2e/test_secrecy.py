"""Nobody who reads Redis reads a prompt or an answer, and nobody without the secret talks to a worker."""

import threading
from typing import Any

import httpx
import zmq

from infra.network.curve_keys import CurveKeys
from infra.network.sealing import new_secret
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S, wait_until

SECRET_WORDS = "my secret is a purple elephant named Gustav"


def dump(store: Any) -> bytes:
    """Every key with everything that it holds."""
    found = []
    for key in store.scan_iter():
        found.append(key)
        match store.type(key):
            case b"string":
                found.append(store.get(key) or b"")
            case b"stream":
                found += [part for _, fields in store.xrange(key) for pair in fields.items() for part in pair]
            case b"zset":
                found += store.zrange(key, 0, -1)
            case b"hash":
                found += [part for pair in store.hgetall(key).items() for part in pair]
            case b"list":
                found += store.lrange(key, 0, -1)
            case b"set":
                found += list(store.smembers(key))
    return b"\n".join(found)


def test_no_key_in_redis_shows_a_prompt_during_a_load(system: System) -> None:
    stop = threading.Event()
    dumps: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            dumps.append(dump(system.store))

    reader = threading.Thread(target=read)
    reader.start()
    answers = []
    try:
        for number in range(12):
            body = {
                "model": system.model.name,
                "messages": [{"role": "user", "content": f"{SECRET_WORDS} {number}"}],
                "max_tokens": 24,
                "temperature": 0,
            }
            answer = httpx.post(
                f"{system.gateway_url}/v1/chat/completions", json=body, timeout=LONG_DEADLINE_S, verify=PLAIN
            )
            assert answer.status_code == 200, answer.text
            answers.append(answer.json()["choices"][0]["message"]["content"].encode())
    finally:
        stop.set()
        reader.join()
    everything = b"\n".join([*dumps, dump(system.store)])
    assert any(b"jobs:" in one for one in dumps), "no job stream was seen"
    assert b"Gustav" not in everything and b"elephant" not in everything
    assert not any(answer in everything for answer in answers if len(answer) > 8)
    assert "Gustav" not in system.log()


def test_a_stranger_is_refused_at_every_port(system: System) -> None:
    strangers = CurveKeys.of(new_secret().encode())
    records = system.records()
    ports = [port for record in records for port in (record.address, record.handoff_address) if port]
    assert len(ports) == 6, "two prefill and two decode workers"
    with zmq.Context() as context:
        for port in ports:
            with context.socket(zmq.DEALER) as socket:
                socket.linger = 0
                socket.immediate = True
                socket.curve_serverkey = strangers.server_public
                socket.curve_publickey, socket.curve_secretkey = strangers.client_public, strangers.client_secret
                failed = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
                socket.connect(port)
                assert failed.poll(10_000), f"no answer from {port}"
                assert not socket.poll(0, zmq.POLLOUT), "nothing can be sent"
                socket.disable_monitor()
                failed.close()
    for record in records:
        wait_until(lambda: f"refused a peer at {record.address}" in system.log(), "the worker to say so")  # noqa: B023
