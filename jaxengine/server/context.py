"""What the endpoints share: settings, the model once it is loaded, and whether the server serves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from jaxengine.engine.async_engine import OutputStream
from jaxengine.server.errors import ApiError, overloaded, shown
from jaxengine.server.model_service import ModelService
from jaxengine.server.settings import ServerSettings
from jaxengine.server.telemetry import Telemetry
from jaxengine.server.text_work import TextWork

LOADING, READY, DRAINING, STUCK, DEAD = "loading", "ready", "draining", "stuck", "dead"


@dataclass
class ServerContext:
    """One server's state. Everything but `settings` changes, on the event loop alone.

    model_names: what clients may call the model; the first is what responses say.
    """

    settings: ServerSettings
    model_names: tuple[str, ...]
    service: ModelService | None = None
    draining: bool = False
    open_streams: set[OutputStream] = field(default_factory=set)
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.text = TextWork(self.settings.text_threads)
        self.observer = Telemetry(self.settings, self.model_names[0])
        if self.service is not None:
            self.open(self.service)

    def open(self, service: ModelService) -> None:
        """The model is loaded, and requests are served from here on. Any thread; before the engine's first step."""
        self.observer.watch(service.engine.engine)
        self.service = service

    @property
    def status(self) -> str:
        if self.service is None:
            return LOADING
        if not self.service.engine.is_healthy:
            return DEAD
        if self.draining:
            return DRAINING
        if self.service.engine.seconds_without_progress() > self.settings.stuck_after:
            return STUCK
        return READY

    def serving(self) -> ModelService:
        """The model. Raises ApiError 503 while it is loading, draining or dead."""
        status = self.status
        if status in (READY, STUCK) and self.service is not None:
            return self.service
        told = {
            LOADING: "the model is still loading", DRAINING: "the server is shutting down",
            DEAD: "the engine has failed and serves no more",
        }[status]
        raise overloaded(told, 5, status=503)

    def model_name(self, asked: str | None) -> str:
        """The name to answer with. Raises ApiError 404 for a name that is not served."""
        if asked is None:
            return self.model_names[0]
        if asked not in self.model_names:
            raise ApiError(
                404, f"the model {shown(asked)} does not exist; GET /v1/models lists what is served",
                param="model", code="model_not_found",
            )
        return asked
