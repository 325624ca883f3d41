"""One tiny model behind real servers: each test may start one with other settings, all over the same engine."""

import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "checkpoint"))      # tiny_checkpoints

from tiny_model import write_model
from wire import Wire, running_server

from jaxengine.config import EngineConfig
from jaxengine.engine.load import load_engine
from jaxengine.server.context import ServerContext
from jaxengine.server.model_service import ModelService
from jaxengine.server.settings import ServerSettings

OPTIONS: dict[str, Any] = {
    "dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 64, "num_blocks": 120, "decode_buckets": (8,),
    "token_buckets": (64,), "warmup": "full", "forbid_compile_after_warmup": True,
}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def load(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], ModelService]:
    """Makes a service of its own; only the first has to compile."""
    cache = str(tmp_path_factory.mktemp("compiled"))

    def make() -> ModelService:
        config = EngineConfig.from_options(**OPTIONS, cache_dir=cache)
        return ModelService.start(load_engine(str(tiny_folder), config, progress=False))

    return make


@pytest.fixture(scope="session")
def service(load: Callable[[], ModelService]) -> Iterator[ModelService]:
    service = load()
    yield service
    service.engine.close()


@pytest.fixture(scope="session")
def serve(service: ModelService) -> Callable[..., Any]:
    """`with serve(max_n=2) as wire:` is a server of these settings."""

    def start(**settings: Any) -> Any:
        ctx = ServerContext(ServerSettings(port=0, **settings), ("tiny", "tiny-alias"), service=service)
        return running_server(ctx)

    return start


@pytest.fixture(scope="session")
def wire(serve: Callable[..., Any]) -> Iterator[Wire]:
    """The server that most tests share: no key, default limits."""
    with serve() as wire:
        yield wire


@pytest.fixture(scope="session")
def greedy_text(wire: Wire) -> str:
    answer = wire.post("/v1/completions", {"prompt": "Hello", "temperature": 0, "max_tokens": 8})
    assert answer.status == 200
    return answer.json["choices"][0]["text"]


@pytest.fixture
def unharmed(wire: Wire, service: ModelService, greedy_text: str) -> Iterator[None]:
    """After the test a normal request gives the known text, and every block is free again."""
    yield
    answer = wire.post("/v1/completions", {"prompt": "Hello", "temperature": 0, "max_tokens": 8})
    assert answer.status == 200
    assert answer.json["choices"][0]["text"] == greedy_text
    assert idle(service)


def idle(service: ModelService, seconds: float = 10) -> bool:
    """Waits until nothing runs and no block is used."""
    engine = service.engine.engine
    end = time.monotonic() + seconds
    while engine.requests or service.engine.num_unfinished or engine.blocks.num_used:
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def until_idle(service: ModelService) -> Callable[[], bool]:
    return lambda: idle(service)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
