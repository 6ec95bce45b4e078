"""Manifests that cannot work are refused in a sentence, and nothing is printed."""

from pathlib import Path

import pytest

from launcher.commands.manifests import print_manifests


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--image", "baton"), "--image: 'baton': has no tag"),
        (("--image", "here.example:5000/baton"), "--image: 'here.example:5000/baton': has no tag"),
        (("--image", "baton:latest"), "--image: 'baton:latest': may be another one tomorrow"),
        (("--model", "DIR"), "--model: 'DIR': no pod can read it"),
        (("--draft-model", "DIR", "--speculation", "draft"), "--draft-model: 'DIR': no pod can read it"),
        (("--lora", "sql=/adapters/sql"), "--lora: '/adapters/sql': no pod can read it"),
        (("--prefill", "3", "--max-prefill", "2"), "--max-prefill: 2: is less than --prefill 3"),
        (("--decode", "9"), "--max-decode: 4: is less than --decode 9"),
        (("--gpus", "2", "--prefill", "2", "--decode", "1"), "--gpus: 2: --prefill 2 --decode 1 take a GPU for each"),
        (("--gpus", "2", "--device", "cpu"), "--gpus: 2: there are none with --device cpu"),
        (("--gpus", "8", "--max-decode", "2"), "--max-decode: 2: is less than --decode "),
        (("--gpu-name", "mine"), "--gpu-name: 'mine': known GPUs are B200, "),
        (("--port", "8501"), "--dashboard-port: 8501: is the same as --port"),
        (("--port", "80"), "--port: '80': "),
        (("--name", "Mine"), "--name: 'Mine': name of the deployment, and prefix of"),
        (("--redis", "unix:///run/redis"), "--redis: 'unix:///run/redis': is a socket of this host"),
        (("--redis", "http://there"), "--redis: "),
        (("--secret-file", "SHORT"), "--secret-file: 'SHORT': a secret has at least 16 characters"),
        (("--secret-file", "/nothing"), "--secret-file: '/nothing': No such file"),
        (("--secret-file", "SHORT", "--existing-secret", "x"), "--secret-file: 'SHORT': the secret is in --existing"),
        (("--api-keys", "/nothing"), "--api-keys: '/nothing': "),
        (("--tls-cert", "/nothing"), "--tls-cert: '/nothing': it goes with --tls-key"),
        (("--host-kv-directory", "/disk"), "--host-kv-directory: '/disk': pods have no disk"),
        (("--slo", "soon"), "--slo: 'soon'"),
        (("--hf-token-secret", "hub:a b"), "--hf-token-secret: 'hub:a b': "),
        (("--hf-endpoint", "hub.example"), "--hf-endpoint: 'hub.example': is no URL"),
        (("--monitor-label", "release"), "--monitor-label: 'release': expected NAME=VALUE"),
        (("--monitor-label", "release=a"), "--monitor-label: 'release=a': it goes with --service-monitor"),
        (("--models-access", "pod", "--models-claim", "m"), "--models-access: 'pod': --models-claim has the models"),
        (("--models-access", "pod", "--model", "/models/m"), "--models-access: 'pod': each pod downloads a model"),
        (("--node-selector", "gpu"), "--node-selector: 'gpu': expected NAME=VALUE, such as gpu=l4"),
        (("--env", "a b=c"), "--env: 'a b=c': expected NAME=VALUE"),
        (("--ingress-class", "nginx"), "--ingress-class: 'nginx': it goes with --hostname"),
        (("--route-gateway", "A"), "--route-gateway: 'A': "),
        (
            ("--hostname", "a", "--route-gateway", "g", "--ingress-class", "c"),
            "--ingress-class: 'c': --route-gateway writes an HTTPRoute, and no Ingress",
        ),
        (("--served-model-name", "a,"), "--served-model-name: 'a,': '' is no name"),
        (("--host", "0.0.0.0"), "--host: '0.0.0.0': no such option"),
    ],
)
def test_bad_input_is_a_sentence(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short"
    short.write_text("short\n")
    places = {"DIR": str(tmp_path), "SHORT": str(short)}
    for name, path in places.items():
        words = tuple(word.replace(name, path) for word in words)
        said = said.replace(name, path)
    assert print_manifests(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {said}") and err.count("\n") == 1, err


def test_whoever_names_no_image_is_told_to_build_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_manifests([]) == 0
    assert "note: --image: 'baton:0.2.0' is in no registry" in capsys.readouterr().err
    assert print_manifests(["--image", "registry.example/baton:0.2.0"]) == 0
    assert "--image" not in capsys.readouterr().err


@pytest.mark.parametrize("image", ["here.example:5000/baton:1.2", f"baton@sha256:{'0' * 64}"])
def test_an_image_with_a_version_is_one(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_manifests(["--image", image]) == 0
    assert f"image: {image}\n" in capsys.readouterr().out
