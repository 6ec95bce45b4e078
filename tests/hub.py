"""A server that speaks as much of the Hugging Face hub's protocol as its own client asks for to download a model."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "5" * 40


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.fetched: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files, content = self.server.files, f"/owner/name/resolve/{COMMIT}/"
        if path.startswith("/api/models/owner/name/tree/"):
            self._answer(json.dumps([_entry(name, body) for name, body in files.items()]).encode())
        elif path.startswith("/api/models/owner/name"):
            siblings = [{"rfilename": name} for name in files]
            self._answer(json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith(content) and (name := path.removeprefix(content)) in files:
            if self.command == "GET":
                self.server.fetched.append(name)
            self._answer(files[name], ETag=f'"{_digest(name, files[name])}"')
        else:
            self.send_error(404)

    def _answer(self, body: bytes, **headers: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextmanager
def hub_of(files: Mapping[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(files) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def _digest(name: str, body: bytes) -> str:
    """Makes a digest that no other file has: the client fetches files of equal digests once."""
    return hashlib.sha1(name.encode() + body).hexdigest()


def _entry(name: str, body: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(body), "oid": _digest(name, body)}
