"""`baton config` prints a file that `--config` takes, with the source of each setting."""

import tomllib
from pathlib import Path

import pytest

from infra.cli import parse
from launcher.__main__ import main
from launcher.options import ROOT, UpConfig


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_PORT", "18080")
    monkeypatch.setenv("BATON_PROT", "1")
    monkeypatch.setenv("BATON_REDIS", "redis://:a-password@10.0.0.5:6379/0")


def test_each_setting_has_its_source_and_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--decode=3", "--lora", "a=/a"]) == 0
    lines = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {
        "port = 18080 # BATON_PORT",
        "decode = 3 # command line",
        'lora = ["a=/a"] # command line',
        "# prefill: decided at the start # default",
        'redis = "redis://:***@10.0.0.5:6379/0" # BATON_REDIS',
        "# BATON_PROT: no option of ./baton up (did you mean BATON_PORT?)",
    } <= lines


def test_what_it_prints_is_a_settings_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BATON_REDIS")
    assert main(["config", "--kv-memory=4GiB", "--model", str(ROOT)]) == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text)["kv-memory"] == 4 << 30
    (tmp_path / "baton.toml").write_text(text)
    read = parse(UpConfig, ["--config", str(tmp_path / "baton.toml")], "baton up", {})
    assert read == parse(UpConfig, ["--kv-memory=4GiB", "--model", str(ROOT), "--port=18080"], "baton up")


def test_a_wrong_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--port=x"]) == 2
    assert capsys.readouterr().err.startswith("error: --port: 'x': ")
