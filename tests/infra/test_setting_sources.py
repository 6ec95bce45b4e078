"""Settings come from the command line, the environment, a file, and defaults, in this order; a wrong key is named."""

from pathlib import Path

import pytest
from msgspec import Struct

from contracts.errors import ConfigError
from contracts.kinds import Bytes, Port
from infra.cli import parse, parse_with_sources


class Inner(Struct, frozen=True, kw_only=True):
    kv_memory: Bytes = 0
    lora: tuple[str, ...] = ()


class Served(Struct, frozen=True, kw_only=True):
    model: str
    port: Port = 8000
    loud: bool = False
    inner: Inner = Inner()


def written(directory: Path, text: str) -> str:
    path = directory / "baton.toml"
    path.write_text(text)
    return str(path)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'model = "of-file"\nport = 1\nkv-memory = "1MiB"\nloud = true\nlora = ["a=/a", "b=/b"]\n')
    environment = {"BATON_PORT": "2", "BATON_KV_MEMORY": "2MiB", "BATON_CONFIG": "no such file", "PORT": "9"}
    parsed = parse_with_sources(Served, ["--port", "3", "--config", file], "served", environment)
    inner = Inner(kv_memory=2 << 20, lora=("a=/a", "b=/b"))
    assert parsed.config == Served(model="of-file", port=3, loud=True, inner=inner)
    assert parsed.sources == {
        **dict.fromkeys(("model", "loud", "lora"), file),
        "kv_memory": "BATON_KV_MEMORY",
        "port": "command line",
    }


def test_the_environment_names_the_file_and_divides_lists_by_commas(tmp_path: Path) -> None:
    environment = {"BATON_CONFIG": written(tmp_path, 'model = "m"'), "BATON_LORA": "a=/a,b=/b"}
    assert parse(Served, [], "served", environment) == Served(model="m", inner=Inner(lora=("a=/a", "b=/b")))


def test_a_service_reads_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_PORT", "2")
    assert parse(Served, ["--model=m"], "served").port == 8000
    with pytest.raises(ConfigError, match="no such option"):
        parse(Served, ["--model=m", "--config=x"], "served")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prot = 1", r": prot: no such option \(did you mean port\?\)$"),
        ("[model]\nname = 1", r": model: \{'name': 1\}: expected a string, a number, true or false$"),
        ("lora = 'a=/a'", r"^ok$"),
        ("lora = [1]", r": lora: \[1\]: expected a list of strings$"),
        ("port = 70000", r": port: '70000': "),
        ("port = ", r"^--config: '.*baton.toml': is no TOML: "),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_file(tmp_path: Path, text: str, why: str) -> None:
    file = written(tmp_path, text)
    if why == "^ok$":
        assert parse(Served, ["--model=m", "--config", file], "served", {}).inner.lora == ("a=/a",)
        return
    with pytest.raises(ConfigError, match=why):
        parse(Served, ["--model=m", "--config", file], "served", {})


def test_a_bad_value_of_the_environment_is_named_by_its_variable() -> None:
    with pytest.raises(ConfigError, match=r"^BATON_PORT: 'x': "):
        parse(Served, ["--model=m"], "served", {"BATON_PORT": "x"})


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^--config: '/no/such': No such file"):
        parse(Served, ["--model=m", "--config=/no/such"], "served", {})
