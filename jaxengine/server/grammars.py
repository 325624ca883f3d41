"""Compiling a request's grammar before it runs: off the event loop, off the engine's thread."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from jaxengine.engine.async_engine import Job
from jaxengine.server.errors import bad_request, overloaded
from jaxengine.server.model_service import ModelService
from jaxengine.structured import GrammarError


async def with_grammars(
    service: ModelService, jobs: list[Job], param: str | None, max_wait: float
) -> list[Job]:
    """The jobs, which share their parameters, with their grammar. param: the field that asked for it.

    max_wait: seconds that it may wait for others' grammars and its own. Raises ApiError 400 for a grammar that
    cannot be compiled, or not within its own time, and 429 where those before it took too long.
    """
    compiling = service.engine.engine.compile_grammar(jobs[0].params)
    if compiling is None:
        return jobs
    try:
        grammar = await asyncio.wait_for(asyncio.wrap_future(compiling), max_wait)
    except TimeoutError:
        raise overloaded(f"the request waited {max_wait:g} s for its grammar to be compiled", 10) from None
    except GrammarError as error:
        raise bad_request(f"{_subject(param, error)}: {error.reason}", param) from None
    except ValueError as error:
        raise bad_request(str(error), param) from None
    return [replace(job, grammar=grammar) for job in jobs]


def _subject(param: str | None, error: GrammarError) -> str:
    if param == "structured_outputs":
        return f"structured_outputs.{error.form}"
    return "response_format.json_schema.schema" if param == "response_format" else "tools"
