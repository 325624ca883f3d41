"""Hub ids, against a small hub on loopback. A child process does the fetching: the hub's client reads its
environment once, when it is imported."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tiny_checkpoints import write_folder

COMMIT = "a" * 40
REPO = "acme/tiny"


class FakeHub(ThreadingHTTPServer):
    """Serves one repository at one commit, known as "main" and "v1", and notes which files were asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.downloaded: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self) -> list[str]:
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file())


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        if path in (f"/api/models/{REPO}/revision/{rev}" for rev in ("main", "v1", COMMIT)):
            siblings = [{"rfilename": name} for name in self.server.files()]
            self._send(json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode(), body)
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            sizes = {name: (self.server.folder / name).stat().st_size for name in self.server.files()}
            entries = [{"type": "file", "path": n, "size": size, "oid": "0" * 40} for n, size in sizes.items()]
            self._send(json.dumps(entries).encode(), body)
        elif path.startswith(f"/{REPO}/resolve/{COMMIT}/"):
            name = path.rsplit("/", 1)[1]
            if body:
                self.server.downloaded.append(name)
            self._send((self.server.folder / name).read_bytes(), body)
        else:
            code = "RevisionNotFound" if path.startswith(f"/api/models/{REPO}/revision") else "RepoNotFound"
            self._send(b"{}", body, 404, {"X-Error-Code": code})

    def _send(self, data: bytes, body: bool, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        etag = hashlib.sha256(data).hexdigest()
        common = {"Content-Length": str(len(data)), "ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        for key, value in (common | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    folder = write_folder(tmp_path / "repo", shards=2)
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "onnx").mkdir()
    for unwanted in ("pytorch_model.bin", "model.pt", "consolidated.safetensors", "onnx/model.json", "README.md"):
        (folder / unwanted).write_bytes(b"x")
    server = FakeHub(folder)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


OPEN = """
import sys
from jaxengine.checkpoint import open_checkpoint
for model in sys.argv[1:]:
    try:
        checkpoint = open_checkpoint(model, progress=False)
        print(checkpoint.kind, len(list(checkpoint.names())), checkpoint.read("model.norm.weight").shape)
    except ValueError as error:
        print("ValueError:", error)
"""


def open_all(hub: FakeHub, home: Path, *models: str, **environment: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", OPEN, *models], capture_output=True, text=True, check=False,
        env={"PATH": "", "HF_HOME": str(home), "HF_ENDPOINT": hub.address, "HOME": str(home)} | environment,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_hub_id_opens_online_and_then_offline(hub: FakeHub, tmp_path: Path) -> None:
    first, by_tag, no_revision, no_repository = open_all(
        hub, tmp_path / "home", REPO, f"{REPO}@v1", f"{REPO}@v9", "acme/none"
    )
    assert first == by_tag == "huggingface 21 (32,)"
    assert no_revision.startswith(f"ValueError: {REPO}@v9 is not on the hub")
    assert no_repository.startswith("ValueError: acme/none is not on the hub")
    assert sorted(hub.downloaded) == [       # each once, and nothing that is not needed
        "chat_template.jinja", "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json", "tokenizer_config.json",
    ]
    hub.downloaded.clear()
    cached, absent = open_all(hub, tmp_path / "home", REPO, "acme/none", HF_HUB_OFFLINE="1")
    assert cached == first
    assert absent.startswith("ValueError: acme/none is not in the hub's cache")
    assert hub.downloaded == []
