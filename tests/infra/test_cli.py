"""Options come from config structs, and a bad value is refused by name."""

import pytest
from msgspec import Struct

from contracts.errors import ConfigError
from infra.cli import parse, words
from infra.config.gateway import GatewayConfig
from infra.config.worker import WorkerConfig


def test_nested_structs_become_flat_options() -> None:
    config = parse(WorkerConfig, ["--model", "dir", "--kv-memory", "512MiB", "--block-size", "32"], "worker")
    assert config.engine.model == "dir"
    assert config.engine.kv_memory == 512 << 20
    assert config.engine.block_size == 32


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--block-size", "7"),
        ("--block-size", "x"),
        ("--kv-memory", "much"),
        ("--kv-memory", "-1"),
        ("--device", "tpu"),
        ("--dtype", "fp8"),
        ("--max-batch-tokens", "-1"),
        ("--gpu-memory-utilization", "1.5"),
        ("--log-level", "loud"),
    ],
)
def test_a_bad_value_is_refused_with_option_and_value(option: str, value: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(WorkerConfig, ["--model", "dir", f"{option}={value}"], "worker")
    assert str(error.value).startswith(f"{option}: {value!r}: ")


class Switched(Struct, frozen=True, kw_only=True):
    loud: bool = False


@pytest.mark.parametrize(
    ("argv", "loud"), [([], False), (["--loud"], True), (["--loud", "False"], False), (["--loud=true"], True)]
)
def test_a_switch_is_given_alone_or_with_its_value(argv: list[str], loud: bool) -> None:
    assert parse(Switched, argv, "switched").loud is loud


def test_an_option_may_be_repeated_and_another_takes_no_value() -> None:
    given = ["--model", "dir", "--lora", "a=/a", "--allow-lora-loading", "--lora", "b=/b"]
    engine = parse(WorkerConfig, given, "worker").engine
    assert (engine.lora, engine.allow_lora_loading) == (("a=/a", "b=/b"), True)
    bare = parse(WorkerConfig, ["--model", "dir"], "worker").engine
    assert (bare.lora, bare.allow_lora_loading) == ((), False)


def test_an_unknown_option_without_a_value_is_refused_in_one_clause() -> None:
    with pytest.raises(
        ConfigError, match=r"^--nope: no such option \(did you mean --model\?\); --help-all lists them$"
    ):
        parse(GatewayConfig, ["--model", "dir", "--nope"], "gateway")


def test_a_missing_option_is_named() -> None:
    with pytest.raises(ConfigError, match="--model"):
        parse(WorkerConfig, [], "worker")


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        parse(WorkerConfig, ["--help"], "worker")
    assert exit_status.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("--model", "--kv-memory", "--window", "--redis", "512MiB"))


class Asked(Struct, frozen=True, kw_only=True):
    model: str
    often: tuple[str, ...] = ()
    count: int | None = None
    share: float = 0.5
    inner: Switched = Switched()


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        (Asked(model="m"), ["--model=m"]),
        (Asked(model=""), ["--model="]),
        (Asked(model="-x y"), ["--model=-x y"]),
        (
            Asked(model="m", often=("a=1", "b"), count=0, share=1e-9),
            ["--model=m", "--often=a=1", "--often=b", "--count=0", "--share=1e-09"],
        ),
        (Asked(model="m", inner=Switched(loud=True)), ["--model=m", "--loud=true"]),
    ],
)
def test_words_say_what_differs_and_are_understood(asked: Asked, written: list[str]) -> None:
    assert words(asked) == written
    assert parse(Asked, written, "asked") == asked


def test_an_empty_one_of_several_is_none() -> None:
    assert parse(Asked, ["--model=m", "--often=", "--often=a"], "asked").often == ("a",)
