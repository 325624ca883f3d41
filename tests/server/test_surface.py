"""Whatever is answered 200: the rows of behaviours, one test each or one entry of a table."""

import re
from typing import Any

import pytest
from tiny_model import EOS, VOCAB, WINDOW
from wire import Wire

from jaxengine.server.model_service import ModelService

pytestmark = pytest.mark.usefixtures("unharmed")
C, H = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Hello"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


def complete(wire: Wire, **fields: Any) -> dict[str, Any]:
    answer = wire.post(C, {"prompt": "Hello", **GREEDY} | fields)
    assert answer.status == 200, answer.body
    return answer.json


def chat(wire: Wire, **fields: Any) -> dict[str, Any]:
    answer = wire.post(H, {"messages": USER, **GREEDY} | fields)
    assert answer.status == 200, answer.body
    return answer.json


def stream(wire: Wire, path: str, **fields: Any) -> list[dict[str, Any]]:
    base = {"prompt": "Hello"} if path == C else {"messages": USER}
    answer = wire.post(path, base | GREEDY | {"stream": True} | fields)
    assert answer.status == 200, answer.body
    events = answer.events
    assert events[-1] == "[DONE]"
    return events[:-1]


def test_completion_shape(wire: Wire, greedy_text: str) -> None:
    body = complete(wire)
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["model"] == "tiny"
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    assert body["choices"] == [
        {"index": 0, "text": greedy_text, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]


def test_chat_shape(wire: Wire) -> None:
    body = chat(wire)
    choice = body["choices"][0]
    assert body["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["refusal"] is None
    ids = wire.post("/tokenize", {"messages": USER}).json["tokens"]
    assert choice["message"]["content"] == complete(wire, prompt=ids)["choices"][0]["text"]
    assert body["usage"]["prompt_tokens"] == len(ids)


# Row 7, 9, 19, 26, 29-34, 44, 47: values that are fine.
@pytest.mark.parametrize("fields", [
    {"unknown_field": 1, "metadata": {"a": "b"}, "store": True}, {"model": "tiny"}, {"model": "tiny-alias"},
    {"n": None, "seed": None, "logprobs": None, "stop": None, "stream_options": None, "suffix": None},
    {"top_p": 1}, {"top_p": 1.0}, {"top_k": -1}, {"top_k": 0}, {"top_k": 10**9}, {"seed": -1}, {"seed": 2**63 - 1},
    {"best_of": 1}, {"stop": ["a", "b", "c", "d"]}, {"stop": "x" * 1024}, {"suffix": ""},
    {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 10}, {"response_format": {"type": "text"}},
    {"temperature": -0.0}, {"temperature": 1e-9}, {"temperature": 1e-40}, {"temperature": 5e-324},
    {"user": "é\n\x1b[31m"},
    {"logit_bias": {str(i): -100 for i in range(VOCAB)}}, {"cache_salt": "x" * 1024}, {"use_beam_search": False},
    {"prompt": [VOCAB - 1, 1]}, {"prompt": "\x00\x01\u2028\u202e"}, {"prompt": "a<|im_end|>b"}, {"priority": 5},
], ids=lambda fields: str(fields)[:40])
def test_good_values(wire: Wire, fields: dict[str, Any]) -> None:
    body = complete(wire, **fields)
    assert body["choices"][0]["finish_reason"] in ("length", "stop")
    assert body["model"] == fields.get("model", "tiny")


@pytest.mark.parametrize("temperature", [0, 1e-9, 1e-40, 5e-324])
def test_tiny_temperatures_are_greedy(wire: Wire, greedy_text: str, temperature: float) -> None:
    assert complete(wire, temperature=temperature)["choices"][0]["text"] == greedy_text


def test_token_ids_are_used_as_they_are(wire: Wire) -> None:
    ids = wire.post("/tokenize", {"prompt": "the cat"}).json["tokens"]
    body = complete(wire, prompt=ids, return_token_ids=True)
    assert body["choices"][0]["prompt_token_ids"] == ids
    assert body["choices"][0]["text"] == complete(wire, prompt="the cat")["choices"][0]["text"]
    assert len(body["choices"][0]["token_ids"]) == 8


@pytest.mark.parametrize("prompts", [["Hello", "the cat"], [[40, 41], [42]], ["Hello"]], ids=str)
def test_batches(wire: Wire, prompts: list[Any]) -> None:
    body = complete(wire, prompt=prompts, n=2)
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(prompts)))
    singles = [complete(wire, prompt=prompt) for prompt in prompts]
    for at, single in enumerate(singles):
        assert body["choices"][2 * at]["text"] == body["choices"][2 * at + 1]["text"] == single["choices"][0]["text"]
    prompt_tokens = sum(single["usage"]["prompt_tokens"] for single in singles)
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens, "completion_tokens": 16 * len(prompts),
        "total_tokens": prompt_tokens + 16 * len(prompts),
    }


def test_defaults_of_max_tokens(wire: Wire) -> None:
    assert complete(wire, max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"] == 16
    body = chat(wire, max_tokens=None, ignore_eos=True)
    assert body["usage"]["total_tokens"] == WINDOW
    assert body["choices"][0]["finish_reason"] == "length"
    assert chat(wire, max_tokens=3, max_completion_tokens=5, ignore_eos=True)["usage"]["completion_tokens"] == 5


def test_the_context_holds_exactly_its_size(wire: Wire) -> None:
    assert complete(wire, prompt=[40] * (WINDOW - 8), ignore_eos=True)["usage"]["total_tokens"] == WINDOW
    assert complete(wire, prompt=[40] * (WINDOW - 1), max_tokens=None)["usage"]["total_tokens"] == WINDOW


def test_no_tokens_but_echo(wire: Wire) -> None:
    body = complete(wire, max_tokens=0, echo=True)
    assert body["choices"][0]["text"] == "Hello"
    assert body["usage"]["completion_tokens"] == 0


def test_seeds(wire: Wire) -> None:
    def texts(**fields: Any) -> list[str]:
        body = complete(wire, temperature=1.5, max_tokens=16, ignore_eos=True, **fields)
        return [choice["text"] for choice in body["choices"]]

    first = texts(n=2, seed=1)
    assert first[0] != first[1]
    assert texts(n=2, seed=1) == first
    assert texts(seed=1) == first[:1]
    assert texts(seed=1 + 2**32) != first[:1]


@pytest.mark.parametrize("count", [0, 1, 20])
def test_legacy_logprobs(wire: Wire, count: int) -> None:
    ids = complete(wire, return_token_ids=True)["choices"][0]["token_ids"]
    logprobs = complete(wire, logprobs=count)["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(ids)}
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert max(count, 1) <= len(top) <= count + 1
        assert top[token] == value == max(top.values())      # greedy


def test_echo_with_logprobs_scores_the_prompt(wire: Wire) -> None:
    out = complete(wire, echo=True, logprobs=2, return_token_ids=True)["choices"][0]
    logprobs = out["logprobs"]
    assert len(logprobs["tokens"]) == 5 + 8
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"][:6] == [0, 1, 2, 3, 4, 5]
    whole = out["prompt_token_ids"] + out["token_ids"]
    again = complete(wire, prompt=whole, echo=True, logprobs=2, max_tokens=0)["choices"][0]["logprobs"]
    assert again["token_logprobs"][1:] == pytest.approx(logprobs["token_logprobs"][1:], abs=1e-3)


def test_echo_of_ids_and_in_streams(wire: Wire, greedy_text: str) -> None:
    assert complete(wire, prompt=[39, 40], echo=True, max_tokens=0)["choices"][0]["text"] == "HI"
    events = stream(wire, C, echo=True)
    assert events[0]["choices"][0]["text"].startswith("Hello")
    assert "".join(event["choices"][0]["text"] for event in events) == "Hello" + greedy_text


def test_chat_logprobs(wire: Wire) -> None:
    content = chat(wire, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    assert len(content) == 8
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        assert entry["bytes"] is not None
    bare = chat(wire, logprobs=True)["choices"][0]["logprobs"]
    assert bare["refusal"] is None
    assert all(entry["top_logprobs"] == [] for entry in bare["content"])


def test_prompt_logprobs(wire: Wire) -> None:
    entries = complete(wire, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
    assert entries[0] is None
    assert len(entries) == 5
    ids = wire.post("/tokenize", {"prompt": "Hello"}).json["tokens"]
    for token_id, entry in zip(ids[1:], entries[1:], strict=True):
        assert set(entry[str(token_id)]) == {"logprob", "rank", "decoded_token"}


# Rows 41-48. "AB": the two likeliest next characters are forced by a bias, so the text is known.
def test_stops(wire: Wire) -> None:
    text = complete(wire, logit_bias={"33": 100}, max_tokens=5)["choices"][0]["text"]
    assert text == "BBBBB"
    cut = complete(wire, logit_bias={"33": 100}, stop="BBB")
    assert cut["choices"][0]["text"] == ""
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["choices"][0]["stop_reason"] == "BBB"
    assert cut["usage"]["completion_tokens"] == 3
    kept = complete(wire, logit_bias={"33": 100}, stop="BBB", include_stop_str_in_output=True)
    assert kept["choices"][0]["text"] == "BBB"
    by_id = complete(wire, logit_bias={"33": 100}, stop_token_ids=[33])
    assert by_id["choices"][0]["stop_reason"] == 33
    events = stream(wire, C, logit_bias={"33": 100}, stop=["BBBX", "BBBB"])
    assert "".join(event["choices"][0]["text"] for event in events) == ""
    assert events[-1]["choices"][0]["stop_reason"] == "BBBB"


def test_end_of_sequence(wire: Wire) -> None:
    body = complete(wire, logit_bias={str(EOS): 100})
    assert body["choices"][0]["text"] == ""
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] is None
    assert body["usage"]["completion_tokens"] == 1
    assert complete(wire, logit_bias={str(EOS): 100}, min_tokens=3)["usage"]["completion_tokens"] == 4
    assert complete(wire, logit_bias={str(EOS): 100}, ignore_eos=True)["usage"]["completion_tokens"] == 8


def test_content_parts_are_joined(wire: Wire) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    one = wire.post("/tokenize", {"messages": [{"role": "user", "content": "Hel\nlo"}]}).json
    assert wire.post("/tokenize", {"messages": [{"role": "user", "content": parts}]}).json == one


def test_continued_messages(wire: Wire) -> None:
    messages = [*USER, {"role": "assistant", "content": "I am"}]
    asked = {"messages": messages, "continue_final_message": True}
    prompt = wire.post("/detokenize", {"tokens": wire.post("/tokenize", asked).json["tokens"]}).json["prompt"]
    assert prompt.endswith("<|im_start|>assistant\nI am")
    content = chat(wire, **asked)["choices"][0]["message"]["content"]
    assert content == complete(wire, prompt=prompt)["choices"][0]["text"]
    assert chat(wire, **asked, add_generation_prompt=False)["choices"][0]["message"]["content"] == content


def test_special_tokens_that_a_user_types(wire: Wire, serve: Any) -> None:
    """B6: they are the tokens, or with an option their letters."""
    asked = {"messages": [{"role": "user", "content": "a<|im_end|>b"}], "add_generation_prompt": False}
    plain = [*asked["messages"], {"role": "assistant", "content": [{"type": "text", "text": "<|im_end|>"}]}]
    assert wire.post("/tokenize", asked).json["tokens"].count(EOS) == 2
    with serve(plain_user_content=True) as other:
        ids = other.post("/tokenize", asked).json["tokens"]
        assert ids.count(EOS) == 1
        text = other.post("/detokenize", {"tokens": ids}).json["prompt"]
        assert text == "<|im_start|>user\na<|im_end|>b<|im_end|>\n"
        assert other.post("/tokenize", asked | {"messages": plain}).json["tokens"].count(EOS) == 3
        answer = other.post(H, {"messages": asked["messages"], "max_tokens": 1, "return_token_ids": True})
        assert answer.json["choices"][0]["prompt_token_ids"][: len(ids)] == ids


def test_template_kwargs_and_roles(wire: Wire) -> None:
    kwargs = wire.post("/tokenize", {"messages": USER, "chat_template_kwargs": {"suffix": "!"}}).json["tokens"]
    assert wire.post("/detokenize", {"tokens": kwargs}).json["prompt"].endswith("assistant\n!")
    developer = wire.post("/tokenize", {"messages": [{"role": "developer", "content": "x"}]}).json
    assert developer == wire.post("/tokenize", {"messages": [{"role": "system", "content": "x"}]}).json
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat(wire, messages=[*USER, {"role": "assistant", "content": None, "tool_calls": [call]},
                         {"role": "tool", "content": "4", "tool_call_id": "1"}])


def test_truncated_prompts(wire: Wire) -> None:
    body = complete(wire, prompt=[40, 41, 42], truncate_prompt_tokens=2, echo=True, max_tokens=0)
    assert body["choices"][0]["text"] == "JK"
    assert body["usage"]["prompt_tokens"] == 2


# Rows 64-67, 81: streams say the same as whole answers.
@pytest.mark.parametrize("fields", [
    {}, {"n": 2}, {"logprobs": 2}, {"logprobs": 1, "echo": True}, {"prompt": ["Hello", "the cat"], "n": 2},
    {"max_tokens": 40}, {"stop": "\""}, {"logit_bias": {str(EOS): 100}}, {"temperature": 1.3, "seed": 5, "n": 3},
    {"return_token_ids": True, "prompt_logprobs": 1}, {"return_tokens_as_token_ids": True, "logprobs": 1},
    {"temperature": 1.3, "seed": 5, "n": 4, "max_tokens": 60, "stop_token_ids": list(range(0, 120, 4))},
    {"max_tokens": 0, "echo": True}, {"prompt": "日本", "logit_bias": {"161": 100}},
], ids=lambda fields: str(fields)[:40])
def test_streamed_completions_equal_whole_ones(wire: Wire, fields: dict[str, Any]) -> None:
    whole = complete(wire, **fields)
    events = stream(wire, C, **fields, stream_options={"include_usage": True})
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in events[:-1])
    assert {event["object"] for event in events} == {"text_completion"}
    assert len({event["id"] for event in events}) == 1
    joined = joined_choices(events[:-1])
    for choice in whole["choices"]:
        assert joined[choice["index"]] == choice


def joined_choices(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Stream events put together again; each choice must end once, with its last event."""
    joined: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            so_far = joined.setdefault(choice["index"], {"text": "", "finish_reason": None})
            assert so_far["finish_reason"] is None
            for name, value in choice.items():
                if name == "text":
                    so_far["text"] += value
                elif name == "token_ids":
                    so_far[name] = so_far.get(name, []) + value
                elif name == "logprobs" and so_far.get(name) and value:
                    so_far[name] = {key: so_far[name][key] + value[key] for key in value}
                else:
                    so_far[name] = value
    return joined


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"stop": "\""},
                                    {"max_tokens": 40}], ids=str)
def test_streamed_chats_equal_whole_ones(wire: Wire, fields: dict[str, Any]) -> None:
    whole = chat(wire, **fields)
    events = stream(wire, H, **fields, stream_options={"include_usage": True})
    assert events[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]
        assert mine[-1]["finish_reason"]
        if choice["logprobs"]:
            content = [entry for c in mine if c["logprobs"] for entry in c["logprobs"]["content"]]
            assert content == choice["logprobs"]["content"]


def test_usage_in_every_event(wire: Wire) -> None:
    events = stream(wire, C, ignore_eos=True,
                    stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert counts[-1] == 8
    assert all("usage" not in event for event in stream(wire, C))


def test_greedy_text_does_not_depend_on_the_batch(wire: Wire, greedy_text: str) -> None:
    body = complete(wire, prompt=["the cat sat", "Hello", "zzz", "Hello", "in the"])
    assert body["choices"][1]["text"] == body["choices"][3]["text"] == greedy_text


def test_broken_characters(wire: Wire) -> None:
    """Row 81: 0xE6 begins a character of three bytes, which never comes."""
    first_byte = next(i for i in range(256) if i == wire.post("/tokenize", {"prompt": "日"}).json["tokens"][0])
    bias = {"logit_bias": {str(first_byte): 100}, "max_tokens": 1}
    whole = complete(wire, **bias)["choices"][0]["text"]
    assert whole == "\ufffd"
    assert "".join(event["choices"][0]["text"] for event in stream(wire, C, **bias)) == whole


# Rows 8-10, 74-76 and the small endpoints.
def test_models(wire: Wire) -> None:
    listed = wire.get("/v1/models").json
    assert [card["id"] for card in listed["data"]] == ["tiny", "tiny-alias"]
    assert wire.get("/v1/models/tiny").json == listed["data"][0]
    assert listed["data"][0]["max_model_len"] == WINDOW
    assert wire.get("/v1/models/other").error["code"] == "model_not_found"


def test_small_endpoints(wire: Wire, service: ModelService) -> None:
    assert wire.get("/health").json == {"status": "ready"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", wire.get("/version").json["version"])
    assert wire.get("/model_info").json == wire.get("/get_model_info").json
    assert wire.get("/model_info").json["max_model_len"] == WINDOW
    info = wire.get("/server_info").json
    assert info["num_free_blocks"] == service.engine.engine.blocks.num_free
    assert "api_key" not in info["server"]


def test_tokenize(wire: Wire) -> None:
    body = wire.post("/tokenize", {"prompt": " the", "return_token_strs": True}).json
    assert body == {"count": 1, "max_model_len": WINDOW, "tokens": body["tokens"], "token_strs": [" the"]}
    assert wire.post("/detokenize", {"tokens": body["tokens"]}).json == {"prompt": " the"}
    assert wire.post("/detokenize", {"tokens": [VOCAB - 1]}).json == {"prompt": ""}


def test_generate(wire: Wire, greedy_text: str) -> None:
    body = wire.post("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}).json
    assert body["text"] == greedy_text
    assert body["meta_info"]["finish_reason"] == {"type": "length", "length": 8}
    assert body["meta_info"]["prompt_tokens"] == 5
    ids = wire.post("/tokenize", {"prompt": "Hello"}).json["tokens"]
    many = wire.post("/generate", {"input_ids": [ids, ids],
                                   "sampling_params": {"max_new_tokens": 8, "temperature": 0}}).json
    assert [one["text"] for one in many] == [greedy_text] * 2
    events = wire.post("/generate", {"input_ids": ids, "stream": True,
                                     "sampling_params": {"max_new_tokens": 8, "temperature": 0}}).events
    assert events[-1] == "[DONE]"
    assert events[-2]["text"] == greedy_text
    assert events[-2]["output_ids"] == body["output_ids"]


@pytest.mark.parametrize(("sent", "echoed"), [
    ("abc-1.2_3", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("a;b", False), ("", False),
])
def test_request_ids(wire: Wire, sent: str, echoed: bool) -> None:
    got = wire.get("/health", x_request_id=sent).headers["x-request-id"]
    assert (got == sent) is echoed
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", got)


def test_no_request_compiles_anything(service: ModelService) -> None:
    assert service.engine.engine.ledger.compiled_after_warmup == 0


@pytest.mark.parametrize("fields", [
    {"allowed_token_ids": [64], "logit_bias": {"64": 1}, "bad_words": ["a"]},
    {"structured_outputs": {"choice": ["ab", "cd"]}, "allowed_token_ids": [5]},
])
def test_wishes_that_leave_no_token_are_the_clients_fault(wire: Wire, service: ModelService, fields: dict) -> None:
    if "bad_words" in fields:
        fields = fields | {"allowed_token_ids": service.tokenizer.encode("a", add_special_tokens=False)}
    answer = wire.post(C, {"prompt": "Hi", "max_tokens": 4, "temperature": 0} | fields)
    assert answer.status == 400
    assert "no token is allowed" in answer.error["message"]


def test_a_noncharacter_is_a_part_of_the_text(wire: Wire) -> None:
    text = "a\ufdd0b"
    count = wire.post("/tokenize", {"prompt": text}).json["count"]
    assert wire.post(C, {"prompt": text, "max_tokens": 1}).json["usage"]["prompt_tokens"] == count
