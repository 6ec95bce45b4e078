"""What Ray says in many lines, and what stands in the log, are sentences and lines of ours."""

from pathlib import Path

import pytest
import ray

from launcher.instance.log_file import LogFile
from launcher.on_ray import cluster
from launcher.on_ray.cluster import ClusterError, connected
from launcher.on_ray.node.redis import free_port
from launcher.on_ray.ray_log import RayLog
from launcher.on_ray.sentence_log import MAX_SENTENCES, SentenceLog


def test_another_version_on_the_cluster_is_one_sentence() -> None:
    """Takes the error that Ray itself raises."""
    theirs = {"ray_version": "2.40.0", "python_version": "3.9.1"}
    with pytest.raises(RuntimeError) as raised:
        ray._private.utils.check_version_info(theirs, "10.0.0.2:6379")
    sentence = cluster._sentence("10.0.0.1:6379", raised.value)
    assert sentence.startswith(
        "--ray-address: '10.0.0.1:6379': the cluster has Ray 2.40.0 and Python 3.9.1, this host Ray"
    )
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:{free}", "--ray-address: '127.0.0.1:{free}': Connection refused"),
        ("ray://127.0.0.1:1", "--ray-address: 'ray://127.0.0.1:1': Ray's client protocol is not spoken"),
        ("somewhere", "--ray-address: 'somewhere': is neither auto nor HOST:PORT of a head node"),
    ],
)
def test_an_address_without_a_cluster_is_one_sentence(address: str, sentence: str) -> None:
    port = free_port("127.0.0.1")
    with pytest.raises(ClusterError) as raised, connected(address.format(free=port), "tested"):
        pass
    assert str(raised.value).startswith(sentence.format(free=port))


def test_lines_stand_in_the_log_under_their_services_names(tmp_path: Path) -> None:
    with LogFile(tmp_path / "log", 1 << 20, 2, lambda sentence: None) as log:
        print("(decode-0 pid=12, ip=10.0.0.2) decode-0  | ready\n(raylet) a node is gone", file=RayLog(log))
    assert log.path.read_text() == "decode-0  | ready\n(raylet) a node is gone\n"


def test_each_listener_hears_each_sentence_once() -> None:
    said = SentenceLog()
    said.say("one")
    assert said.since(0) == ("one",) and said.since(said.count) == ()
    said.say("two")
    assert said.since(1) == ("two",)
    assert said.since(99) == ("one", "two"), "of another life"
    for number in range(MAX_SENTENCES + 5):
        said.say(str(number))
    assert len(said.since(0)) == MAX_SENTENCES
