"""`baton key` makes keys that a gateway takes, shows each once, and says in a sentence what is wrong."""

from pathlib import Path

import pytest

from infra.keys.key_file import read_keys
from infra.keys.key_ring import KeyRing
from launcher.__main__ import main
from launcher.commands.key import default_key_file

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_a_key_is_made_listed_and_revoked(capsys: Output) -> None:
    options = ["--tenant", "acme", "--requests-per-minute", "60", "--tokens-per-minute", "9000", "--concurrency", "2"]
    options += ["--priority", "3", "--weight", "2", "--slo", "ttft=2s,tpot=100ms", "--operator"]
    assert main(["key", "new", "app", *options]) == 0
    out, told = capsys.readouterr()
    text = out.strip()
    assert out == f"{text}\n" and text not in told and f"./baton up --api-keys {default_key_file()}" in told
    record = KeyRing([str(default_key_file())]).find(text)
    assert record is not None and (record.name, record.owner, record.operator, record.weight) == (
        "app",
        "acme",
        True,
        2.0,
    )
    assert (record.requests_per_minute, record.tokens_per_minute, record.concurrency) == (60, 9000, 2)
    assert default_key_file().stat().st_mode & 0o777 == 0o600 and text[-64:] not in default_key_file().read_text()
    assert main(["key", "new", "other"]) == 0
    capsys.readouterr()
    assert main(["key", "list"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "TENANT", "KEY", "CREATED", "MAY"]
    assert "operator, 60 requests/min, 9000 tokens/min, 2 at once, priority 3, weight 2, ttft=2s,tpot=100ms" in first
    assert second.split()[:2] == ["other", "other"] and text[-64:] not in first
    assert main(["key", "revoke", "app"]) == 0
    assert [key.name for key in read_keys(default_key_file())] == ["other"]


def test_a_file_of_ones_own_is_used(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "deep" / "keys.json"
    assert main(["key", "new", "one", "--api-keys", str(path)]) == 0
    assert [key.name for key in read_keys(path)] == ["one"] and not default_key_file().exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make"], "'make': no such action; there are: new, list, revoke"),
        (["new"], "expected ./baton key new NAME"),
        (["new", "a b"], "NAME: 'a b': a name has up to 64"),
        (["new", ""], "NAME: ''"),
        (["new", "one", "--slo", "soon"], "--slo: 'soon': expected ttft=2s,tpot=100ms"),
        (["new", "one", "--weight", "0"], "--weight: '0'"),
        (["new", "one", "--concurrency", "-1"], "--concurrency: '-1'"),
        (["new", "one", "--tenant", "a/b"], "--tenant: 'a/b'"),
        (["new", "one", "--rpm", "5"], "--rpm: no such option"),
        (["new", "one", "--api-keys", "/proc/nothing/keys"], "--api-keys"),
        (["list"], "--api-keys"),
        (["revoke", "one"], "--api-keys"),
    ],
)
def test_what_cannot_work_is_one_sentence(arguments: list[str], said: str, capsys: Output) -> None:
    assert main(["key", *arguments]) == 2
    out, told = capsys.readouterr()
    assert out == "" and told.startswith("error: ") and said in told and told.count("\n") == 1


def test_a_name_is_there_once(capsys: Output) -> None:
    assert main(["key", "new", "one"]) == 0
    for arguments, said in ((["new", "one"], "has a key of this name"), (["revoke", "two"], "has no key of this name")):
        capsys.readouterr()
        assert main(["key", *arguments]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["help"]])
def test_help_teaches(arguments: list[str], capsys: Output) -> None:
    assert main(["key", *arguments]) == 0
    out = capsys.readouterr().out
    assert "./baton key new NAME" in out and f"./baton up --api-keys {default_key_file()}" in out


def test_help_of_an_action_lists_its_options(capsys: Output) -> None:
    for arguments in (["new", "--help"], ["new", "one", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(["key", *arguments])
        out = capsys.readouterr().out
        assert "--requests-per-minute" in out and "--slo" in out and "Example:" in out
