"""What becomes of a request, told once: to the metrics and to the log."""

from __future__ import annotations

import logging

from jaxengine.engine.engine import Engine
from jaxengine.server.access_log import AccessRecord
from jaxengine.server.errors import ApiError
from jaxengine.server.metrics import Exposition, HttpRecorder, Recorder, SloTargets
from jaxengine.server.metrics.http import OTHER
from jaxengine.server.observer import Exchange, Observer, Work
from jaxengine.server.settings import ServerSettings

# Asked for over and over by machines: only a debug log shows them.
QUIET = frozenset({"/", "/health", "/metrics", "/stats"})


class Telemetry(Observer):
    """Counts and logs exchanges; watches the engine once there is one."""

    def __init__(self, settings: ServerSettings, model_name: str) -> None:
        self.targets = SloTargets(settings.slo_ttft_ms, settings.slo_itl_ms)
        self.http = HttpRecorder()
        self.exposition = Exposition(self.http, model_name, settings.vllm_metric_names)
        self.endpoints: frozenset[str] = frozenset()      # the paths of the routes

    def watch(self, engine: Engine) -> None:
        """From here on, steps are counted. To be called before the engine's first step, by whoever loaded it."""
        engine.observer = self.exposition.engine = Recorder(engine, self.targets)

    def exchange_ended(self, exchange: Exchange) -> None:
        endpoint = self._endpoint(exchange.path)
        self.http.answered(endpoint, exchange.status)
        level = logging.DEBUG if endpoint in QUIET else logging.ERROR if exchange.status == 500 else logging.INFO
        _record(exchange, endpoint).write(level)

    def refused(self, error: ApiError) -> None:
        self.http.turned_away(error.status, error.code)

    def _endpoint(self, path: str) -> str:
        if path.startswith("/v1/models/"):
            return "/v1/models/{id}"
        return path if path in self.endpoints else OTHER


def _record(exchange: Exchange, endpoint: str) -> AccessRecord:
    record = AccessRecord(
        exchange.request_id, exchange.method, endpoint, exchange.status, e2e=exchange.ended - exchange.started,
        error=exchange.error.code if exchange.error is not None else None,
        client_abort=exchange.status == 499,
    )
    if exchange.work is not None:
        _add_work(record, exchange.work, exchange.started)
    return record


def _add_work(record: AccessRecord, work: Work, started: float) -> None:
    outputs = list(work.usage.last.values())
    record.model, record.user, record.stream = work.model, work.user, work.stream
    record.prompt_tokens, record.output_tokens = work.usage.prompt_tokens, work.usage.completion_tokens
    record.cached_tokens = work.usage.cached_tokens
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    record.queue = _since(started, [m.first_scheduled_time for m in metrics])
    record.ttft = _since(started, [m.first_token_time for m in metrics])
    record.finish_reasons = [
        choice.finish_reason for output in outputs for choice in output.outputs if choice.finish_reason is not None
    ]


def _since(started: float, times: list[float | None]) -> float | None:
    """Seconds from the request's arrival to the first of `times`."""
    known = [time for time in times if time is not None]
    return min(known) - started if known else None
