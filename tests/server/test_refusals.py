"""Bad requests, one entry each: the status, the field it names, and that nothing is harmed by it."""

import json
import time
from typing import Any

import pytest
from tiny_model import VOCAB, WINDOW
from wire import Wire

pytestmark = pytest.mark.usefixtures("unharmed")
C, H, G = "/v1/completions", "/v1/chat/completions", "/generate"
USER = [{"role": "user", "content": "Hello"}]


def c(case: str, param: str | None = None, code: str | None = None, **fields: Any) -> Any:
    """A completion that is refused for `fields`; `param` is the first of them unless it is said."""
    named = param or next(iter(fields))
    return pytest.param(C, {"prompt": "Hello", "max_tokens": 4} | fields, 400, named, code, id=f"{case}-c-{named}")


def h(case: str, param: str | None = None, code: str | None = None, **fields: Any) -> Any:
    named = param or next(iter(fields))
    return pytest.param(H, {"messages": USER, "max_tokens": 4} | fields, 400, named, code, id=f"{case}-h-{named}")


TOO_LONG = "context_length_exceeded"

ROWS = [
    pytest.param(C, {"prompt": "x", "model": "gpt-4"}, 404, "model", "model_not_found", id="8"),
    pytest.param(C, {"prompt": "x", "model": ""}, 404, "model", "model_not_found", id="9"),
    pytest.param(C, {"prompt": "x", "model": "a\n\x1b[31m"}, 404, "model", "model_not_found", id="B14"),
    pytest.param(C, {"max_tokens": 4}, 400, "prompt", None, id="11-missing"),
    *(c("11", prompt=prompt) for prompt in (None, "", [], [[]], [""], 5, {"a": 1}, [None], ["a", ""], [[1], []])),
    *(c("14", prompt=prompt) for prompt in (["a", [1]], [1, "a"], [[1], 2], ["a", 1], [[["a"]]], [{"a": 1}])),
    *(c("15", prompt=[i]) for i in (-1, VOCAB, 200_000, 2**31, 2**63, 2**70)),
    *(c("16", prompt=[1, i]) for i in (1.5, True, 1.0, "5", None)),
    *(c("21-23", max_tokens=value) for value in (0, -1, 10**30, "4", 1.5, 4.0, True, [])),
    *(h("21-23", max_tokens=value) for value in (0, -1, 10**30, "4", 1.5, True)),
    h("21", max_completion_tokens=-1),
    c("23", "max_tokens", TOO_LONG, max_tokens=WINDOW), c("23", "max_tokens", TOO_LONG, prompt=[1] * 250, max_tokens=7),
    h("23", "max_tokens", TOO_LONG, max_tokens=WINDOW),
    c("24", "prompt", TOO_LONG, prompt=[40] * WINDOW), c("24", "prompt", TOO_LONG, prompt=[40] * (WINDOW + 1)),
    c("24", "prompt", TOO_LONG, prompt=[40] * WINDOW, max_tokens=None),
    h("24", "messages", TOO_LONG, messages=[{"role": "user", "content": "x" * WINDOW}], max_tokens=None),
    c("24", "prompt", TOO_LONG, prompt="x" * 100_000),
    *(c("26", n=n) for n in (0, -1, 10**9, 129, True, "2", 2.0)),
    *(c("29", best_of=best) for best in (0, 2, 20, 10**9)), c("29", "best_of", n=2, best_of=1),
    *(c("30", temperature=t) for t in (-0.1, 2.1, "1", True, [1])),
    *(c("31", top_p=p) for p in (0, -1, 1.1, "1", True)),
    *(c("32", top_k=k) for k in (-2, "5", 1.5, True)), *(c("32", min_p=p) for p in (-0.1, 1.1)),
    *(c("33", **{name: v}) for name in ("presence_penalty", "frequency_penalty") for v in (-2.1, 2.1, True)),
    *(c("33", repetition_penalty=v) for v in (0, -1, 10.1)),
    *(c("34", seed=s) for s in (2**63, -(2**63) - 1, 1.5, "1", True)),
    *(c("36", logprobs=k) for k in (21, -1, 10**9, True, 1.0, "1")),
    *(h("40", logprobs=True, param="top_logprobs", top_logprobs=k) for k in (21, -1, True)),
    h("40", top_logprobs=3), h("40", logprobs=1),
    *(c("43", stop=s) for s in ("", [""], ["a", ""], 5, [5], [None], {"a": 1})),
    c("44", stop=["a"] * 5), c("44", stop=["a"] * 10_000), c("44", stop="x" * 2**20), c("44", stop="é" * 513),
    c("47", "min_tokens", min_tokens=5, max_tokens=4), c("47", min_tokens=-1), c("47", ignore_eos=1),
    c("A26", "min_tokens", min_tokens=WINDOW - 4, max_tokens=None),
    *(c("48", stop_token_ids=ids) for ids in ([-1], [VOCAB], ["a"], [True], 5, [2**70], list(range(129)))),
    *(c("49", "logit_bias", logit_bias={key: 1}) for key in
      (str(VOCAB), "-5", "a", "1.0", " 5", "05", "2" * 30, "")),
    *(c("50", f"logit_bias.{key}", logit_bias={key: value}) for key, value in
      (("1", 101), ("2", -101), ("3", "x"), ("4", True), ("5", None))),
    c("50", logit_bias=[1]), c("50", logit_bias={str(i): 0 for i in range(1025)}),
    *(h("51", messages=m) for m in ([], None, "hi", 5, {})),
    pytest.param(H, {}, 400, "messages", None, id="51-missing"),
    *(h("52", "messages[0].role", messages=[m]) for m in (
        {"role": "wizard", "content": "x"}, {"content": "x"}, {"role": None, "content": "x"},
        {"role": 5, "content": "x"})),
    *(h("53", "messages[0].content", messages=[{"role": "user", "content": v}]) for v in (5, True, {}, [], [5])),
    *(h("53", "messages[0]", messages=[m]) for m in (
        {"role": "user", "content": None}, {"role": "user"}, {"role": "assistant"}, "x", None, 5)),
    *(h("55", "messages[0].content", messages=[{"role": "user", "content": [part]}]) for part in (
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}, {"type": "input_audio"}, {"text": "x"},
        {"type": "text"}, {"type": "text", "text": 5})),
    h("56", continue_final_message=True, add_generation_prompt=True),
    h("57", chat_template="{{ 1 }}"),
    *(h("57", chat_template_kwargs={name: "x"}) for name in
      ("tokenize", "chat_template", "messages", "tools", "eos_token", "continue_final_message")),
    h("57", chat_template_kwargs={"a": [1]}), h("57", chat_template_kwargs={"a": {"b": 1}}),
    *(c("68", "stream_options", stream_options=o, stream=False) for o in ({}, {"include_usage": True})),
    h("68", "stream_options", stream_options={}, stream=False),
    c("68", stream=True, param="stream_options", stream_options=5),
    c("68", stream=True, param="stream_options.include_usage", stream_options={"include_usage": "yes"}),
    c("5", stream="true"), c("5", stream=1), c("5", echo="yes"), c("5", model=5),
    *(c("A11", allowed_token_ids=ids) for ids in ([], [VOCAB], [-1], ["a"])),
    c("A11", allowed_token_ids=[VOCAB - 10], min_tokens=1),
    c("A13", prompt_logprobs=21), c("A13", prompt_logprobs=-1),
    *(c("A14", logprob_token_ids=ids) for ids in ([1], [[1]], [VOCAB])),
    c("A17", prompt=["a"] * 100_000), c("A17", prompt=["a"] * 1025), c("A17", "prompt", prompt=["a"] * 1024, n=3),
    *(c("A25", n_discard=-1) for _ in "x"), c("A25", truncate_prompt_tokens=-1), c("A25", truncate_prompt_tokens=0),
    c("A25", truncate_prompt_tokens=WINDOW + 1), c("12", bad_words=[""]), c("12", bad_words=["x"] * 129),
    c("4", suffix="x"), c("4", use_beam_search=True), c("4", guided_json={}), c("4", guided_regex="a"),
    c("4", prompt_embeds="x"), c("4", logits_processors=[]), h("4", functions=[]), h("4", modalities=["audio"]),
    c("4", custom_logit_processor="x"), c("limits", user="x" * 257), c("limits", cache_salt="x" * 1025),
    c("limits", cache_salt=""), c("limits", priority=2**31),
    pytest.param("/tokenize", {"prompt": 5}, 400, "prompt", None, id="75"),
    pytest.param("/tokenize", {}, 400, "prompt", None, id="75-missing"),
    pytest.param("/tokenize", {"messages": []}, 400, "messages", None, id="75-messages"),
    pytest.param("/detokenize", {"tokens": [VOCAB]}, 400, "tokens", None, id="76-oov"),
    pytest.param("/detokenize", {"tokens": [-1]}, 400, "tokens[0]", None, id="76-negative"),
    pytest.param("/detokenize", {"tokens": [True]}, 400, "tokens[0]", None, id="76-bool"),
    pytest.param(G, {}, 400, "text", None, id="generate"), pytest.param(
        G, {"text": "a", "input_ids": [1]}, 400, "text", None, id="generate-both"),
    pytest.param(G, {"text": "a", "sampling_params": {"regex": "a"}}, 400, "regex", None, id="generate-regex"),
    pytest.param(G, {"input_ids": [VOCAB]}, 400, "prompt", None, id="generate-oov"),
    pytest.param(G, {"text": "a", "sampling_params": {"max_new_tokens": -1}}, 400, "max_tokens", None,
                 id="generate-max"),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "code"), ROWS)
def test_refused(wire: Wire, path: str, body: dict[str, Any], status: int, param: str, code: str | None) -> None:
    for stream in (False, True):
        sent = body if "stream" in body or path not in (C, H) else body | {"stream": stream}
        answer = wire.post(path, sent)
        assert answer.status == status, answer.body
        told = answer.error["param"]
        assert told == param or told.partition("[")[0] == param
        assert answer.error["code"] == code
        assert answer.error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


@pytest.mark.parametrize("body", [
    b"", b"null", b"[]", b'"text"', b"5", b"{", b"{'a': 1}", b'{"prompt": "a",}', b"\xff\xfe", b'{"prompt": "\xff"}',
    b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": Infinity}',
    b'{"prompt": "a", "temperature": -Infinity}', b'{"prompt": "a", "temperature": 1e400}',
    b'{"prompt": "a", "logit_bias": {"1": NaN}}', b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    b'{"prompt": "\\ud800"}', b'{"model": "\\ud800", "prompt": "a"}', b'{"prompt": ["a", "\\udc00x"]}',
    b'{"\\ud800": 1, "prompt": "a"}', b"[" * 100_000, b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"a":' * 60_000 + b"1" + b"}" * 60_000,
], ids=lambda body: repr(body[:30]))
def test_bodies_that_are_no_request(wire: Wire, body: bytes) -> None:
    """Rows 3, 4, 6; A23, B1, B3, J9."""
    for path in (C, H):
        answer = wire.post(path, body)
        assert answer.status == 400, answer.body
        assert answer.error["param"] in (None, "prompt", "messages")
        assert "Traceback" not in answer.error["message"]
        assert "line 1" not in answer.error["message"]      # nothing of the parser's own


def test_duplicate_keys_the_last_wins(wire: Wire) -> None:
    answer = wire.post(C, b'{"prompt": "a", "max_tokens": 5, "max_tokens": 2, "temperature": 0}')
    assert answer.json["usage"]["completion_tokens"] <= 2


@pytest.mark.parametrize(("headers", "status"), [
    ({"content-type": "text/plain"}, 415), ({"content-type": "application/x-www-form-urlencoded"}, 415), ({}, 415),
    ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
    ({"content-type": "application/json; charset=utf-8"}, 200), ({"content-type": "APPLICATION/JSON"}, 200),
], ids=str)
def test_content_types(wire: Wire, headers: dict[str, str], status: int) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    answer = wire.request("POST", C, body, headers)
    assert answer.status == status
    if status != 200:
        assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/nothing", 404), ("GET", "/v1", 404), ("POST", "/v1/responses", 404), ("POST", "/v1/messages", 404),
    ("GET", "//v1/models", 404), ("GET", "/v1/../v1/models", 404), ("GET", "/V1/models", 404),
    ("GET", "/%2e%2e/v1/models", 404), ("GET", "/v1/models/", 404), ("POST", "/invocations", 404),
    ("POST", "/pause", 404), ("POST", "/update_weights", 404), ("POST", "/flush_cache", 404),
    ("GET", C, 405), ("GET", H, 405), ("DELETE", C, 405), ("PUT", C, 405), ("OPTIONS", C, 405), ("TRACE", C, 405),
    ("POST", "/health", 405), ("POST", "/v1/models", 405), ("GET", "/tokenize", 405),
])
def test_paths_and_methods(wire: Wire, method: str, path: str, status: int) -> None:
    answer = wire.request(method, path)
    assert answer.status == status, answer.body
    assert answer.error["message"]
    assert answer.headers["x-request-id"]
    if status == 405:
        assert answer.headers["allow"]


def test_the_numbers_are_in_the_message(wire: Wire) -> None:
    long = [wire.post(C, {"prompt": [40] * n, "stream": s}).error["message"]
            for n, s in ((WINDOW, False), (WINDOW, True), (300, False))]
    assert long[0] == long[1]
    assert "256 tokens" in long[0]
    assert "300 tokens" in long[2]
    both = wire.post(C, {"prompt": [40] * 250, "max_tokens": 10}).error["message"]
    assert all(number in both for number in ("250", "10", "260", "256"))
    assert str(VOCAB) in wire.post(C, {"prompt": [VOCAB + 5]}).error["message"]


def test_a_huge_prompt_is_refused_at_once_and_health_stays_live(wire: Wire) -> None:
    start = time.monotonic()
    answer = wire.post(C, {"prompt": "x" * 50_000_000})
    assert answer.status == 413
    assert wire.get("/health").status == 200
    assert time.monotonic() - start < 10      # a peer tokenised for half a minute


def test_an_error_never_quotes_more_than_a_little(wire: Wire) -> None:
    answer = wire.post(C, {"prompt": "a", "stop": [{"x": "y" * 100_000}]})
    assert len(answer.body) < 1000


@pytest.mark.parametrize(("body", "message"), [
    (b'{"prompt": "x",}', "the body is not valid JSON: Expecting property name enclosed in double quotes"),
    (b'{"prompt": "x", "temperature": 1e999}', "the body is not valid JSON: '1e999' is out of range"),
    (b'{"prompt": "x", "temperature": NaN}', "the body is not valid JSON: NaN is not a number of JSON"),
    (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "the body is not valid JSON: a number has too many digits"),
    (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body is nested too deeply"),
])
def test_what_is_wrong_with_json_is_said(wire: Wire, body: bytes, message: str) -> None:
    answer = wire.request("POST", C, body, {"content-type": "application/json"})
    assert answer.status == 400
    assert answer.error["message"].startswith(message)


def test_tokenize_takes_one_of_prompt_and_messages(wire: Wire) -> None:
    answer = wire.post("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]})
    assert (answer.status, answer.error["param"]) == (400, "prompt")
