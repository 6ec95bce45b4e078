"""Every bad setting gets one sentence with its name and value, exit status 2, and nothing is started."""

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.options import ROOT
from launcher.words import BAD_INPUT_STATUS, COMMANDS


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence that `baton up` answers with."""
    assert main(["up", *arguments]) == BAD_INPUT_STATUS
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prefill", "-1"], "error: --prefill: '-1': "),
        (["--decode", "0"], "error: --decode: '0': "),
        (["--decode", "-1"], "error: --decode: '-1': "),
        (["--autoscale", "decode=1:4"], "error: --autoscale: 'decode=1:4': on one host the numbers of workers stay"),
        (["--detach"], "error: --detach: 'true': services run on this host; --on ray runs them on a Ray cluster"),
        (["--decode", "two"], "error: --decode: 'two': "),
        (["--device", "tpu"], "error: --device: 'tpu': "),
        (["--dtype", "fp64"], "error: --dtype: 'fp64': "),
        (["--kv-dtype", "int4"], "error: --kv-dtype: 'int4': "),
        (["--kv-dtype", "fp8", "--kv-codec", "int8"], "error: --kv-codec: 'int8': the pool has a byte for each value"),
        (["--block-size", "17"], "error: --block-size: '17': "),
        (["--kv-memory", "lots"], "error: --kv-memory: 'lots': "),
        (["--max-model-len", "-5"], "error: --max-model-len: '-5': "),
        (["--port", "70000"], "error: --port: '70000': "),
        (["--log-level", "loud"], "error: --log-level: 'loud': "),
        (["--colour"], "error: --colour: "),
        (["--host", "192.0.2.1"], "error: --host: '192.0.2.1': is no address of this host"),
        (["--host", "no such host"], "error: --host: 'no such host': cannot be resolved"),
        (["--secret-file", "/no/such/file"], "error: --secret-file: '/no/such/file': "),
        (["--model", "/no/such/model"], "error: --model: '/no/such/model': there is no such directory"),
        (["--allow-lora-loading"], "error: --allow-lora-loading: 'true': it needs --lora-root"),
        (["--lora-root", "/no/such/root"], "error: --lora-root: '/no/such/root': is not a directory"),
        (["--speculation", "often"], "error: --speculation: 'often': "),
        (["--speculation", "medusa"], "error: --speculation: 'medusa': it needs --medusa"),
        (["--medusa", "/no/such/heads", "--speculation", "auto"], "error: --medusa: '/no/such/heads': is not a dir"),
        (["--draft-model", "/no/such/draft", "--speculation", "draft"], "error: --draft-model: '/no/such/draft': "),
        (["--redis", "mysql://127.0.0.1"], "error: --redis: 'mysql://127.0.0.1': "),
    ],
)
def test_a_bad_setting_is_named(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    free = [] if "--port" in arguments else ["--port", "0"]
    known_good = [*free, "--dashboard-port", "0"]
    if "--redis" in arguments:
        known_good += ["--model", "some/model"]
    assert refused([*known_good, *arguments], capsys).startswith(sentence)


def test_weights_larger_than_the_memory_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file's bytes take no room on the disk: it says 4 TiB, and none was written."""
    values = 1 << 40
    header = json.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(file.tell() + 4 * values)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    line = refused(["--port", "0", "--dashboard-port", "0", "--model", str(tmp_path), "--device", "cpu"], capsys)
    assert line.startswith(f"error: --model: {str(tmp_path)!r}: its weights take 2.0TiB at least")
    assert line.endswith("; a smaller model may fit")


def test_an_option_without_its_value_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "argument --port: expected one argument" in refused(["--port"], capsys)


def test_a_taken_port_is_named_before_anything_is_loaded(taken_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["--port", str(taken_port)], capsys).startswith(f"error: --port: {taken_port}: another process uses")
    sentence = refused(["--port", "0", "--dashboard-port", str(taken_port)], capsys)
    assert sentence.startswith(f"error: --dashboard-port: {taken_port}: another process uses")


def test_one_port_for_two_servers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(["--port", "18999", "--dashboard-port", "18999"], capsys)
    assert sentence.startswith("error: --dashboard-port: 18999: is the same as --port")


def test_an_unreachable_redis_is_named_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"redis://user:hunter2@127.0.0.1:{unused.getsockname()[1]}"
        sentence = refused(["--port", "0", "--dashboard-port", "0", "--model", "a/b", "--redis", url], capsys)
    assert sentence.startswith("error: --redis: 'redis://user:***@127.0.0.1:")
    assert "hunter2" not in sentence


def test_a_server_that_is_no_redis_is_refused_in_time(
    monkeypatch: pytest.MonkeyPatch, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("launcher.checking.preflight.REDIS_TIMEOUT_S", 0.3)
    url = f"redis://127.0.0.1:{taken_port}"
    sentence = refused(["--port", "0", "--dashboard-port", "0", "--model", "a/b", "--redis", url], capsys)
    assert sentence.startswith(f"error: --redis: '{url}': no answer")


def test_kv_memory_that_is_not_there_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--port", "0", "--dashboard-port", "0", "--device", "cpu", "--kv-memory", "1024TiB"]
    assert refused(told, capsys).startswith("error: --kv-memory: '1024.0TiB': only ")


def test_gpus_that_are_not_there_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sentence = refused(["--port", "0", "--dashboard-port", "0", "--device", "cuda"], capsys)
    assert sentence.startswith("error: --device: 'cuda': ")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"]])
def test_help_teaches(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "./baton up --model" in shown
    assert "./baton chat" in shown


@pytest.mark.parametrize("command", ["up", "chat"])
def test_each_command_explains_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert f"./baton {command}" in shown
    assert "\n  --" in shown


def test_an_unknown_service_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fly"]) == 2
    named = "redis, prefill, decode, gateway, dashboard, workers"
    assert capsys.readouterr().err == f"error: 'fly' is no service of baton; there are: {named}\n"


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fly"]) == 2
    named = ", ".join(COMMANDS)
    assert capsys.readouterr().err == f"error: 'fly' is no command of baton; there are: {named}\n"


def test_the_launcher_starts_without_torch() -> None:
    code = "import sys, launcher.__main__; sys.exit(bool({'torch', 'zmq', 'transformers'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), check=True)
