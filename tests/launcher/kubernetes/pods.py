"""Runs pods as a kubelet does, on this machine: their commands, users, mounts, environments and probes, as written.

A pod here is a process with a root of its own: this machine's files and the image's `/app`, read-only, and over them
what the manifest mounts. All pods are in one network namespace, each with a loopback address.
"""

import base64
import http.client
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.network.tls import trusting_any_server
from launcher.containers.container import APP_DIRECTORY
from launcher.options import ROOT
from tests.e2e.harness.host import Host, namespace

Manifest = Any


class Node:
    """Has the manifests' ConfigMaps and Secrets, the names of Services, and an address for each pod."""

    def __init__(self, manifests: Sequence[Manifest], host: Host, directory: Path) -> None:
        self.host = host
        self.directory = directory
        self._data: dict[str, dict[str, str]] = {
            each["metadata"]["name"]: {**each.get("data", {}), **each.get("stringData", {})} for each in manifests
        }
        self._workloads = {
            each["metadata"]["name"]: each for each in manifests if each["kind"] in ("Deployment", "StatefulSet")
        }
        numbers = itertools.count(2)
        self.addresses = {name: f"127.0.0.{next(numbers)}" for name in self._workloads}

    @contextmanager
    def run(self, name: str) -> Iterator["Pod"]:
        """Runs one pod of a workload, until exit."""
        pod = Pod(self, name, self._workloads[name]["spec"]["template"]["spec"])
        try:
            yield pod
        finally:
            pod.process.kill()
            pod.process.wait()

    def value(self, source: Manifest, name: str) -> str:
        """The value of an environment variable's `valueFrom`."""
        if "fieldRef" in source:
            return {"status.podIP": self.addresses[name], "spec.nodeName": "this-node"}[source["fieldRef"]["fieldPath"]]
        return self._data[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]

    def config(self, name: str) -> dict[str, str]:
        return self._data[name]


class Pod:
    """A pod with one container. Its process is the container's."""

    def __init__(self, node: Node, name: str, spec: Manifest) -> None:
        (self.container,) = spec["containers"]
        self.node = node
        self.name = name
        self.address = node.addresses[name]
        self.grace: float = spec["terminationGracePeriodSeconds"]
        self._user = spec["securityContext"]
        self._home = node.directory / name
        self._home.mkdir()
        self.log = node.directory / f"{name}.log"
        self._environment = self._variables(name)
        self.command = [self._filled(word) for word in (*self.container["command"], *self.container["args"])]
        lines = ["set -e", *self._root(), *self._mounts(spec), *self._python_below_mounts()]
        script = "\n".join([*lines, f"exec {self._inside(self.command)}"])
        with self.log.open("wb") as log, node.host.inside():
            self.process = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=log, stderr=log)

    def probed(self, kind: str) -> bool:
        """Whether the container answers a probe, asked from where a kubelet would."""
        probe = self.container[kind]
        if "exec" in probe:
            words = ["nsenter", "-t", str(self.process.pid), "-m", "-r", "sh", "-c"]
            entered = self._as_user(probe["exec"]["command"])
            with self.node.host.inside():
                return subprocess.run([*words, f"exec {entered}"], capture_output=True).returncode == 0
        asked = probe.get("httpGet") or probe["tcpSocket"]
        connection = self.connection(asked["port"], asked.get("scheme", ""), probe["timeoutSeconds"])
        with self.node.host.inside():
            try:
                connection.connect()
                if "tcpSocket" in probe:
                    return True
                connection.request("GET", asked["path"])
                return 200 <= connection.getresponse().status < 400
            except OSError:
                return False
            finally:
                connection.close()

    def connection(self, name: str, scheme: str, seconds: float) -> http.client.HTTPConnection:
        (port,) = [port["containerPort"] for port in self.container["ports"] if port["name"] == name]
        if scheme == "HTTPS":
            return http.client.HTTPSConnection(self.address, port, timeout=seconds, context=trusting_any_server())
        return http.client.HTTPConnection(self.address, port, timeout=seconds)

    def _variables(self, name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in self.container.get("envFrom", ()):
            found |= self.node.config(source["configMapRef"]["name"])
        for entry in self.container["env"]:
            found[entry["name"]] = self.node.value(entry["valueFrom"], name)
        return found

    def _filled(self, word: str) -> str:
        return re.sub(r"\$\((\w+)\)", lambda match: self._environment[match[1]], word)

    def _root(self) -> list[str]:
        """The image: this machine's files, our packages and the Python of these tests, none of which can be written."""
        home, root = self._home, self._home / "root"
        hosts = "".join(f"{address} {name}\\n" for name, address in self.node.addresses.items())
        lines = [f"mount -t tmpfs none {home}", f"cd {home}", "mkdir upper work root"]
        lines += [f"mount -t overlay none -o lowerdir=/,upperdir={home}/upper,workdir={home}/work {root}"]
        for source, target in (
            (ROOT, APP_DIRECTORY),
            (Path(sys.prefix), sys.prefix),
            ("/proc", "/proc"),
            ("/dev", "/dev"),
        ):
            lines += [f"mkdir -p {root}{target}", f"mount --rbind {source} {root}{target}"]
        # Python may be below a home that only its owner enters, and this checkout too; in an image they are not.
        above = {parent for place in (sys.base_prefix, sys.prefix) for parent in Path(place).parents} - {Path("/")}
        lines += [f"chmod o+x {root}{parent}" for parent in sorted(above)]
        mounted = [path for each in self.container["volumeMounts"] if (path := each["mountPath"])]
        return [*lines, *(f"mkdir -p {root}{path}" for path in mounted), f"printf '{hosts}' > {root}/etc/hosts"]

    def _mounts(self, spec: Manifest) -> list[str]:
        """What the manifest mounts, below the longest path last."""
        root, user, group = self._home / "root", self._user["runAsUser"], self._user["fsGroup"]
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        lines = [f"mount -o remount,ro {root}"] if self.container["securityContext"]["readOnlyRootFilesystem"] else []
        for mount in sorted(self.container["volumeMounts"], key=lambda mount: str(mount["mountPath"])):
            path = f"{root}{mount['mountPath']}"
            lines.append(f"mount -t tmpfs -o mode=2770,uid=0,gid={group} none {path}")
            secret = volumes.get(mount["name"], {}).get("secret")
            if secret is not None:
                files = self.node.config(secret["secretName"])
                for item in secret.get("items", [{"key": name, "path": name} for name in files]):
                    encoded = base64.b64encode(files[item["key"]].encode()).decode()
                    lines.append(f"echo {encoded} | base64 -d > {path}/{item['path']}")
                lines.append(f"chown -R 0:{group} {path} && chmod {secret['defaultMode']:o} {path}/*")
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,ro {path}")
        assert user != 0
        return lines

    def _python_below_mounts(self) -> list[str]:
        """Puts the Python of these tests back where a mount hides it: this checkout may be below /tmp."""
        root, prefix = self._home / "root", Path(sys.prefix)
        hidden = any(prefix.is_relative_to(each["mountPath"]) for each in self.container["volumeMounts"])
        return [f"mkdir -p {root}{prefix}", f"mount --rbind {prefix} {root}{prefix}"] if hidden else []

    def _inside(self, command: Sequence[str]) -> str:
        """The command in the container's root, for `exec`: one process from here on."""
        return f"chroot {self._home / 'root'} {self._as_user(command)}"

    def _as_user(self, command: Sequence[str]) -> str:
        user = self._user
        image: Mapping[str, str] = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": APP_DIRECTORY,
            **self._environment,
        }
        settings = " ".join(shlex.quote(f"{name}={value}") for name, value in image.items())
        confined = "--no-new-privs --bounding-set=-all --inh-caps=-all"
        return (
            f"setpriv --reuid {user['runAsUser']} --regid {user['runAsGroup']} --clear-groups {confined}"
            f" env -i -C {APP_DIRECTORY} {settings} {shlex.join(command)}"
        )


@contextmanager
def node(manifests: Sequence[Manifest], directory: Path) -> Iterator[Node]:
    with namespace("pods") as host:
        yield Node(manifests, host, directory)
