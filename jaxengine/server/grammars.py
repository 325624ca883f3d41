"""Compiling a request's grammar before it runs: off the event loop, off the engine's thread."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from jaxengine.engine.async_engine import Job
from jaxengine.server.errors import bad_request
from jaxengine.server.model_service import ModelService
from jaxengine.structured import GrammarError


async def with_grammars(service: ModelService, jobs: list[Job], param: str | None) -> list[Job]:
    """The jobs, which share their parameters, with their grammar. param: the field that asked for it.

    Raises ApiError 400 for a grammar that cannot be compiled, or not within its time.
    """
    compiling = service.engine.engine.compile_grammar(jobs[0].params)
    if compiling is None:
        return jobs
    try:
        grammar = await asyncio.wrap_future(compiling)
    except GrammarError as error:
        raise bad_request(f"{_subject(param, error)}: {error.reason}", param) from None
    except ValueError as error:
        raise bad_request(str(error), param) from None
    return [replace(job, grammar=grammar) for job in jobs]


def _subject(param: str | None, error: GrammarError) -> str:
    if param == "structured_outputs":
        return f"structured_outputs.{error.form}"
    return "response_format.json_schema.schema" if param == "response_format" else "tools"
