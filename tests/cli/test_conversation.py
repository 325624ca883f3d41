"""A conversation against a stand-in model that counts one token a word."""

from types import SimpleNamespace

import pytest

from jaxengine.cli import CommandError
from jaxengine.cli.conversation import Conversation
from jaxengine.types import CompletionOutput, RequestOutput, SamplingParams

CONTEXT = 40      # tokens


class Tokenizer:
    def apply_chat_template(self, messages, add_generation_prompt):
        assert add_generation_prompt
        return " ".join(message["content"] for message in messages)

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return text.split()


class Model:
    """Answers 'yes indeed', word by word; remembers what it was asked and whether a stream was closed early."""

    def __init__(self, finish_reason="stop", error=None):
        self.engine = SimpleNamespace(max_model_len=CONTEXT)
        self.tokenizer = Tokenizer()
        self.asked: list[list[dict[str, str]]] = []
        self.closed_early = False
        self.finish_reason, self.error = finish_reason, error

    def stream_chat(self, messages, params, output_kind):
        assert output_kind == "delta"
        self.asked.append([dict(message) for message in messages])
        try:
            for i, word in enumerate(["yes", " indeed"]):
                last = i == 1
                piece = CompletionOutput(0, word, finish_reason=self.finish_reason if last else None)
                yield RequestOutput("0", None, [], [piece], finished=last, error=self.error)
        except GeneratorExit:
            self.closed_early = True
            raise


def talk(model: Model, system: str | None = None) -> Conversation:
    return Conversation(model, SamplingParams(max_tokens=8), system)  # type: ignore[arg-type]


def test_answers_are_remembered():
    model = Model()
    conversation = talk(model, "be brief")
    assert "".join(conversation.say("one")) == "yes indeed"
    assert list(conversation.say("two")) == ["yes", " indeed"]
    assert model.asked[1] == [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "one"},
        {"role": "assistant", "content": "yes indeed"}, {"role": "user", "content": "two"},
    ]
    assert conversation.notes == []


def test_reset_keeps_the_system_message():
    model = Model()
    conversation = talk(model, "be brief")
    list(conversation.say("one"))
    conversation.reset()
    list(conversation.say("two"))
    assert [message["content"] for message in model.asked[1]] == ["be brief", "two"]


def test_closing_stops_the_model_and_keeps_what_was_said():
    model = Model()
    conversation = talk(model)
    answer = conversation.say("one")
    assert next(answer) == "yes"
    answer.close()
    assert model.closed_early
    list(conversation.say("two"))
    assert [message["content"] for message in model.asked[1]] == ["one", "yes", "two"]


def test_a_message_stopped_before_its_first_word_is_forgotten():
    model = Model()
    conversation = talk(model)
    answer = conversation.say("one")
    answer.close()
    list(conversation.say("two"))
    assert [message["content"] for message in model.asked[-1]] == ["two"]


def test_a_message_interrupted_before_its_first_word_is_forgotten():
    class Interrupted(Model):
        def stream_chat(self, messages, params, output_kind):
            raise KeyboardInterrupt

    conversation = talk(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        list(conversation.say("one"))
    conversation.llm = model = Model()  # type: ignore[assignment]
    list(conversation.say("two"))
    assert [message["content"] for message in model.asked[-1]] == ["two"]


def test_the_oldest_exchange_is_forgotten_when_the_context_is_full():
    model = Model()
    conversation = talk(model, "be brief")
    list(conversation.say("a " * 10))
    list(conversation.say("b " * 10))
    assert conversation.notes == []
    list(conversation.say("c " * 10))      # 2 + 12 + 12 + 10 words are more than the 32 beside an answer of 8
    assert [message["content"].split()[0] for message in model.asked[2]] == ["be", "b", "yes", "c"]
    assert conversation.notes == ["the context was full: forgot the oldest messages (1 and their answers)"]


def test_a_message_that_can_never_fit_is_refused_and_not_remembered():
    model = Model()
    conversation = talk(model)
    with pytest.raises(ValueError, match=r"the message has 33 tokens, and 32 of the context's 40 are for messages"):
        list(conversation.say("a " * 33))
    list(conversation.say("two"))
    assert [message["content"] for message in model.asked[0]] == ["two"]


def test_a_cut_answer_is_noted():
    conversation = talk(Model(finish_reason="length"))
    list(conversation.say("one"))
    assert conversation.notes == ["cut after 8 tokens; --max-tokens allows more"]


def test_a_request_that_fails_is_an_error():
    conversation = talk(Model(error="the logits are not finite"))
    with pytest.raises(CommandError, match="the logits are not finite"):
        list(conversation.say("one"))
