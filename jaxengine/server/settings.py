"""The server's settings: every limit has a name, a documented default and a flag. No third-party imports here."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1 << 20
TOOL_CALL_PARSERS = ("auto", "none", "hermes", "llama3_json", "mistral")
REASONING_PARSERS = ("auto", "none", "think")
LOG_FORMATS = ("auto", "json", "text")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class ServerSettings:
    """What the server allows. Flags are these names with dashes. Times are seconds, sizes bytes.

    A request that crosses a limit is refused by name, before anything is computed for it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: tuple[str, ...] = ()       # empty: the model as it was named at start
    api_key: tuple[str, ...] = ()                 # empty: no key is asked for
    open_metrics: bool = False                    # /metrics without a key
    allowed_origins: tuple[str, ...] = ()         # CORS, off by default
    allowed_hosts: tuple[str, ...] = ()           # Host headers that are answered; empty: any
    plain_user_content: bool = False              # special tokens that a chat's user types are plain text
    enable_priority: bool = False                 # heed the `priority` of requests; else it has no effect
    enable_prompt_tokens_details: bool = False    # usage tells how many prompt tokens were cached

    # What can be seen of it.
    metrics: bool = True                          # serve /metrics
    vllm_metric_names: bool = True                # offer them under vLLM's names, too
    slo_ttft_ms: float | None = None              # target for the time to the first token, in milliseconds
    slo_itl_ms: float | None = None               # target for the time between two tokens, in milliseconds
    log_format: str = "auto"                      # json, text; auto: text for a terminal, JSON for all else
    log_level: str = "info"                       # debug, info, warning, error

    # What one request may ask for.
    max_body_bytes: int = 10 * MEBIBYTE
    max_prompts: int = 1024
    max_sequences: int = 2048                     # prompts times n
    max_n: int = 128
    max_logprobs: int = 20
    max_prompt_logprob_entries: int = 250_000     # prompt tokens times (1 + prompt_logprobs)
    max_output_tokens: int | None = None          # None: up to the end of the context
    max_stop_strings: int = 4
    max_stop_bytes: int = 1024                    # of each
    max_stop_token_ids: int = 128
    max_logit_bias: int = 1024
    max_bad_words: int = 128
    max_messages: int = 4096
    max_user_chars: int = 256
    max_cache_salt_chars: int = 1024

    # How the model writes what is not plain text; "auto" goes by its chat template.
    tool_call_parser: str = "auto"                # or none, hermes, llama3_json, mistral
    reasoning_parser: str = "auto"                # or none, think

    # Admission.
    max_queue_len: int = 1024                     # requests that wait, those being tokenised included
    max_queue_wait: float = 60.0
    request_timeout: float | None = None          # from arrival to the last token; a client may ask for less
    text_threads: int = 2                         # threads that tokenise and render templates

    # Connections.
    max_connections: int = 1000
    max_header_bytes: int = 64 * 1024
    header_timeout: float = 10.0
    body_timeout: float = 30.0                    # after it a body must have come at min_body_rate or better
    min_body_rate: int = 16 * 1024                # bytes per second
    keep_alive_timeout: int = 5
    stream_buffer_bytes: int = MEBIBYTE           # unsent bytes of one stream
    stream_stall_timeout: float = 5.0             # a reader whose buffer is full has so long to catch up

    # Life cycle.
    drain_timeout: float = 30.0
    stuck_after: float = 120.0                    # /health is 503 when work makes no progress for so long

    def __post_init__(self) -> None:
        for key in self.api_key:
            if not key.strip():
                raise ValueError("api_key='' is empty: anyone could guess it; give a key or leave the flag out")
            if not key.isascii() or any(c.isspace() for c in key):
                raise ValueError("api_key must be ASCII without spaces, since it travels in a header")
        for name in self.served_model_name:
            if not name:
                raise ValueError("served_model_name='' is empty; name the model or leave the flag out")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port={self.port} must be in [0, 65535]")
        if not 1 <= self.max_stop_strings <= 32:
            raise ValueError(f"max_stop_strings={self.max_stop_strings} must be in [1, 32]")
        for name, known in (("log_format", LOG_FORMATS), ("log_level", LOG_LEVELS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is not known; use one of {', '.join(known)}")
        for name, known in (("tool_call_parser", TOOL_CALL_PARSERS), ("reasoning_parser", REASONING_PARSERS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is not known; known: {', '.join(known)}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} must be more than 0")


_POSITIVE = (
    "max_body_bytes", "max_prompts", "max_sequences", "max_n", "max_prompt_logprob_entries", "max_output_tokens",
    "max_queue_len", "max_queue_wait", "request_timeout", "text_threads", "max_connections", "max_header_bytes",
    "header_timeout", "body_timeout", "min_body_rate", "keep_alive_timeout", "stream_buffer_bytes",
    "stream_stall_timeout", "drain_timeout", "stuck_after", "slo_ttft_ms", "slo_itl_ms",
)
