"""OpenAI's own package against the server, and the demo model once."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from wire import Wire, running_server

from jaxengine.config import EngineConfig
from jaxengine.engine.load import load_engine
from jaxengine.server.context import ServerContext
from jaxengine.server.model_service import ModelService
from jaxengine.server.settings import ServerSettings


@pytest.fixture(scope="module")
def client(serve: Any) -> Iterator[OpenAI]:
    with serve(api_key=("the-key",)) as wire, OpenAI(base_url=wire.url + "/v1", api_key="the-key") as client:
        yield client


USER: Any = [{"role": "user", "content": "Hello"}]


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "tiny-alias"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_completions(client: OpenAI, greedy_text: str) -> None:
    whole = client.completions.create(model="tiny", prompt="Hello", max_tokens=8, temperature=0, logprobs=2)
    assert whole.choices[0].text == greedy_text
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.tokens is not None
    assert len(whole.choices[0].logprobs.tokens) == 8
    stream = client.completions.create(
        model="tiny", prompt="Hello", max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == greedy_text
    assert chunks[-1].usage == whole.usage


def test_chat(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model="tiny", messages=USER, max_completion_tokens=8, temperature=0, logprobs=True, top_logprobs=2, n=2
    )
    assert len(whole.choices) == 2
    assert whole.choices[0].logprobs is not None
    stream = client.chat.completions.create(model="tiny", messages=USER, max_tokens=8, temperature=0, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content
    with client.chat.completions.with_streaming_response.create(
        model="tiny", messages=USER, max_tokens=4, stream=True
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")


def test_errors_say_what_is_wrong(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p=3 should be less than or equal to 1") as bad:
        client.chat.completions.create(model="tiny", messages=USER, top_p=3)
    assert bad.value.param == "top_p"
    with pytest.raises(openai.NotFoundError, match="'gpt-4' does not exist"):
        client.chat.completions.create(model="gpt-4", messages=USER)
    with pytest.raises(openai.AuthenticationError, match="a valid API key is needed"):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError, match="the context of 256"):
        client.completions.create(model="tiny", prompt=[40] * 256)
    with pytest.raises(openai.NotFoundError, match="there is nothing at '/v1/responses'"):
        client.responses.create(model="tiny", input="x")


def test_an_error_in_a_stream_is_raised(client: OpenAI) -> None:
    stream = client.completions.create(
        model="tiny", prompt=["Hello"] * 400, max_tokens=240, stream=True, extra_body={"ignore_eos": True},
        extra_headers={"X-Request-Timeout": "2"},      # time enough for a first token, not for twelve thousand steps
    )
    with pytest.raises(openai.APIError, match="was not done within"):
        list(stream)


def test_the_published_document_is_whole(wire: Wire) -> None:
    document = wire.get("/openapi.json").json
    text = wire.get("/openapi.json").body.decode()
    for part in text.split('"$ref": "#/components/schemas/')[1:]:
        assert part.partition('"')[0] in document["components"]["schemas"]
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["n"] == {"default": 1, "maximum": 128, "minimum": 1, "title": "N", "type": "integer"}
    assert fields["model"]["anyOf"] == [{"type": "string", "enum": ["tiny", "tiny-alias"]}, {"type": "null"}]
    responses = document["paths"]["/v1/completions"]["post"]["responses"]
    assert set(responses) == {"200", "400", "401", "404", "408", "413", "415", "429", "500", "503"}


@pytest.mark.slow
def test_the_demo_model_knows_the_capital_of_france(smollm2: str) -> None:
    config = EngineConfig.from_options(
        dtype="float32", max_num_seqs=2, max_num_batched_tokens=64, max_model_len=256, num_blocks=40,
        decode_buckets=(2,), token_buckets=(64,),
    )
    service = ModelService.start(load_engine(smollm2, config, progress=False))
    ctx = ServerContext(ServerSettings(port=0), (smollm2,), service=service)
    try:
        with running_server(ctx) as wire, OpenAI(base_url=wire.url + "/v1", api_key="none") as client:
            answer = client.chat.completions.create(
                model=smollm2, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
            )
            assert answer.choices[0].message.content == "The capital of France is Paris."
            assert answer.choices[0].finish_reason == "stop"
    finally:
        service.engine.close()
