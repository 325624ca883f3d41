"""Serves a model over HTTP with OpenAI's API; stops on Ctrl-C or SIGTERM once open requests are done.

It listens at once; GET /health answers 200 when the model is loaded. Send requests to /v1/chat/completions,
/v1/completions and the others that GET /openapi.json lists, or open the address in a browser to chat.

  jaxengine serve smollm2-135m-instruct
  jaxengine serve ./my-model --host 0.0.0.0 --api-key "$KEY" --served-model-name my-model --max-num-seqs 16
"""

from __future__ import annotations

import argparse
import os
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any, get_type_hints

from jaxengine.cli import CommandError
from jaxengine.cli.engine_flags import accepts_terms, add_model_arguments, engine_options, read_template
from jaxengine.cli.flags import Flag, add_flag, byte_count, given
from jaxengine.server.settings import ServerSettings

USAGE = "MODEL [options]"

# One entry for each field of ServerSettings; a test holds that none is missing or left over.
FLAGS = {
    "host": Flag("address to listen on", metavar="HOST"),
    "port": Flag("port to listen on; 0 takes a free one"),
    "served_model_name": Flag("what clients call the model; may be repeated", repeat=True, metavar="NAME"),
    "api_key": Flag("key that requests must bring, else JAXENGINE_API_KEY; may be repeated", repeat=True,
                    metavar="KEY"),
    "open_metrics": Flag("serve /metrics without a key"),
    "allowed_origins": Flag("web page origins that may call (CORS); may be repeated", repeat=True, metavar="ORIGIN"),
    "allowed_hosts": Flag("Host headers that are answered (default: all); may be repeated", repeat=True,
                          metavar="HOST"),
    "plain_user_content": Flag("take special tokens in the messages of users and tools as plain text"),
    "enable_priority": Flag("heed the priority field of requests"),
    "enable_prompt_tokens_details": Flag("tell in usage how many prompt tokens were cached"),
    "metrics": Flag("serve Prometheus' metrics at /metrics"),
    "vllm_metric_names": Flag("offer them under vLLM's names, too"),
    "slo_ttft_ms": Flag("target for the time to the first token, in milliseconds", metavar="MS"),
    "slo_itl_ms": Flag("target for the time between two tokens, in milliseconds", metavar="MS"),
    "log_format": Flag("form of the log lines: auto, json, text (auto: text for a terminal)"),
    "log_level": Flag("least level that is logged: debug, info, warning, error"),
    "max_body_bytes": Flag("size of a request's body", parse=byte_count, metavar="BYTES"),
    "max_prompts": Flag("prompts in one request"),
    "max_sequences": Flag("prompts times n of one request"),
    "max_n": Flag("n of a request"),
    "max_logprobs": Flag("log-probabilities at each position"),
    "max_prompt_logprob_entries": Flag("prompt tokens times 1 + prompt_logprobs"),
    "max_output_tokens": Flag("tokens of an answer (default: up to the context's end)"),
    "max_stop_strings": Flag("stop strings of a request, up to 32"),
    "max_stop_bytes": Flag("size of a stop string or bad word", parse=byte_count, metavar="BYTES"),
    "max_stop_token_ids": Flag("stop tokens of a request"),
    "max_logit_bias": Flag("entries of logit_bias"),
    "max_bad_words": Flag("entries of bad_words"),
    "max_messages": Flag("messages of a conversation"),
    "max_user_chars": Flag("characters of user"),
    "max_cache_salt_chars": Flag("characters of cache_salt"),
    "tool_call_parser": Flag("how the model writes tool calls: auto, none, hermes, llama3_json or mistral"),
    "reasoning_parser": Flag("how the model marks its reasoning: auto, none or think"),
    "max_queue_len": Flag("requests that may wait; more are answered 429"),
    "max_queue_wait": Flag("seconds that a request may wait for its grammar, and for its first step"),
    "request_timeout": Flag("seconds from arrival to the last token (default: any)"),
    "text_threads": Flag("threads that tokenise and render templates"),
    "max_connections": Flag("open connections"),
    "max_header_bytes": Flag("size of a request's headers", parse=byte_count, metavar="BYTES"),
    "header_timeout": Flag("seconds for the headers to come"),
    "body_timeout": Flag("seconds until a body must keep the rate"),
    "min_body_rate": Flag("bytes a second of a slow body"),
    "keep_alive_timeout": Flag("seconds that an idle connection is kept"),
    "stream_buffer_bytes": Flag("unsent bytes of one stream", parse=byte_count, metavar="BYTES"),
    "stream_stall_timeout": Flag("seconds for a reader with a full buffer to catch up"),
    "drain_timeout": Flag("seconds for open requests to end after SIGTERM"),
    "stuck_after": Flag("seconds without progress until /health says stuck"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    group = parser.add_argument_group("server")
    hints = get_type_hints(ServerSettings)
    for field in fields(ServerSettings):
        assert field.default is not MISSING
        add_flag(group, field.name, hints[field.name], field.default, FLAGS[field.name])


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """What the flags say. Raises ValueError for a wrong one."""
    values: dict[str, Any] = given(args, FLAGS)
    if "api_key" not in values and "JAXENGINE_API_KEY" in os.environ:
        values["api_key"] = [os.environ["JAXENGINE_API_KEY"]]
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return ServerSettings(**values)


def run(args: argparse.Namespace) -> int:
    settings = server_settings(args)
    options = {"warmup": "background"} | engine_options(args)
    template = read_template(args)
    try:
        serve = import_module("jaxengine.server.run").serve
    except ModuleNotFoundError as error:
        raise CommandError(f"{error.name} is not installed; pip install 'jaxengine[server]'") from None
    serve(args.model, settings, options, chat_template=template, accept_terms=accepts_terms(args))
    return 0
