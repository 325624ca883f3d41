"""Chat templates: what they see, where they come from, what they cannot do, and messages that are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_vocabularies import byte_level

from jaxengine.tokenizer import Tokenizer
from jaxengine.tokenizer.chat_template import ChatTemplate

USER = {"role": "user", "content": "hi"}
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[reply]{% endif %}"
)


def render(template: str, messages: Any = (USER,), **options: Any) -> str:
    settings = {"add_generation_prompt": False, "continue_final_message": False, "tools": None} | options
    variables = settings.pop("variables", {})
    return ChatTemplate({"default": template}, {"bos_token": "<s>"}).render(messages, variables=variables, **settings)


def test_lines_of_statements_leave_nothing_behind():
    template = "{{ bos_token }}\n  {% for m in messages %}\n{{ m.role }}\n  {% endfor %}\nend\n"
    assert render(template) == "<s>\nuser\nend"


def test_what_published_templates_rely_on():
    message = {"role": "user", "content": "é<&"}
    assert render("{{ messages[0] | tojson }}", [message]) == '{"role": "user", "content": "é<&"}'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}"
                  "{% endfor %}") == "02"
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abhic"
    assert render("{{ tools is none }} {{ thinking }}", variables={"thinking": True}) == "True True"


def test_the_final_message_is_left_open():
    talk = [USER, {"role": "assistant", "content": "Hello, "}]
    assert render(PLAIN, talk, continue_final_message=True) == "[user]hi\n[assistant]Hello, "
    assert render(PLAIN.replace("m.content", "m.content | trim"), talk, continue_final_message=True).endswith("]Hello,")
    with pytest.raises(ValueError, match="continue_final_message=True needs add_generation_prompt=False"):
        render(PLAIN, talk, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(ValueError, match="does not write the final message as it is"):
        render("{{ messages[0].content }}", talk, continue_final_message=True)


def test_a_template_s_own_refusal_is_the_caller_s_error():
    with pytest.raises(ValueError, match="refuses this conversation: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    ["{{ nothing.at_all }}", "{{ 1 / 0 }}", "{{ messages + 1 }}", "{{ messages[0].content.pop() }}", "{{ [][3].x }}"],
)
def test_errors_within_a_template(template: str):
    with pytest.raises(ValueError, match="refuses this conversation"):
        render(template)


def test_a_template_that_does_not_parse():
    with pytest.raises(ValueError, match="does not parse: line 2"):
        render("a\n{% for %}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{% for i in range(10**7) %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * [1] }}",
        "{{ 2 ** 1000000 }}",
        "{% for i in range(1000) %}{{ 'a' * 100000 }}{% endfor %}",
    ],
)
def test_the_sandbox_holds(template: str):
    with pytest.raises(ValueError, match="refuses this conversation"):
        assert not render(template)


def test_formatting_sees_no_private_attributes():
    assert render("{% set f = '{0.__class__}{1}'.format %}{{ f(messages, 'x') }}") == "x"


def test_messages_are_not_changed():
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [
        {"function": {"name": "f", "arguments": '{"x": 1}'}}]}]
    assert render("{{ messages[0].content }} {{ messages[0].tool_calls[0].function.arguments.x }}", messages) == "a 1"
    assert messages[0]["content"] == [{"type": "text", "text": "a"}]
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'


def test_content_may_be_parts_or_missing_beside_tool_calls():
    parts = [{"type": "text", "text": "a"}, {"text": "b"}, "c"]
    assert render(PLAIN, [{"role": "user", "content": parts}]) == "[user]a\nb\nc\n"
    assert render(PLAIN, [{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]) == "[assistant]\n"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages must be a non-empty list"),
        ("hi", "messages must be a non-empty list"),
        (USER, "messages must be a non-empty list"),
        (["hi"], r"messages\[0\] must be an object with role and content, found str"),
        ([USER, {"content": "x"}], r"messages\[1\]\.role=None must be a non-empty string"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role=3 must be"),
        ([{"role": "user"}], r"messages\[0\]\.content is missing; a user message needs text"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be .* text parts, found int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\]\.type='image_url' is not supported"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text must be a string"),
        ([{"role": "user", "content": [7]}], r"content\[0\] must be a text part, found int"),
        ([{"role": "assistant", "tool_calls": ["f"]}], r"tool_calls\[0\] must be an object"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], r"arguments is not JSON"),
    ],
)
def test_malformed_messages(messages: Any, message: str):
    with pytest.raises(ValueError, match=message):
        render(PLAIN, messages)


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "tokenize", "chat_template"])
def test_variables_cannot_stand_in_for_the_engine_s(name: str):
    with pytest.raises(ValueError, match=f"must not be named '{name}'"):
        render(PLAIN, variables={name: "x"})


def test_tools_are_objects_and_have_their_template_where_there_is_one():
    templates = ChatTemplate({"default": "plain", "tool_use": "tools: {{ tools[0].name }}"}, {})
    options = {"add_generation_prompt": True, "continue_final_message": False, "variables": {}}
    assert templates.render([USER], tools=None, **options) == "plain"
    assert templates.render([USER], tools=[], **options) == "plain"
    assert templates.render([USER], tools=[{"name": "find"}], **options) == "tools: find"
    with pytest.raises(ValueError, match=r"tools\[0\] must be an object with the tool's schema, found str"):
        templates.render([USER], tools=["find"], **options)  # type: ignore[list-item]


def test_templates_without_a_default():
    with pytest.raises(ValueError, match="templates are named rag, none of them 'default'"):
        ChatTemplate({"rag": "x"}, {}).render(
            [USER], tools=None, add_generation_prompt=True, continue_final_message=False, variables={}
        )


def test_a_user_s_template_replaces_the_checkpoint_s(load: Callable[..., Tokenizer], tmp_path: Path):
    model = byte_level("gpt-2", special=["<s>"], bos="<s>") | {"tokenizer.chat_template": "from the file"}
    assert load(model).apply_chat_template([USER]) == "from the file"
    assert load(model, chat_template="{{ bos_token }}own").apply_chat_template([USER]) == "<s>own"
    path = tmp_path / "own.jinja"
    path.write_text("é {{ messages[0].content }}", encoding="utf-8")
    tokenizer = load(model, chat_template=str(path))
    assert tokenizer.chat_template == "é {{ messages[0].content }}"
    assert tokenizer.apply_chat_template([USER]) == "é hi"
    with pytest.raises(ValueError, match=r"chat_template='missing\.jinja' is neither a jinja template nor a file"):
        load(model, chat_template="missing.jinja")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        load(model, chat_template=str(path))


def test_named_templates_of_a_gguf_file(load: Callable[..., Tokenizer]):
    model = byte_level("gpt-2") | {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    assert load(model).apply_chat_template([USER], tools=[{"name": "find"}]) == "tools"


def test_bos_is_not_doubled(load: Callable[..., Tokenizer]):
    tokenizer = load(byte_level("llama-bpe", special=["<s>"], bos="<s>"), chat_template="{{ bos_token }}hi")
    assert tokenizer.encode_chat([USER]).count(tokenizer.bos_token_id) == 1


def test_half_a_surrogate_pair_is_refused(load: Callable[..., Tokenizer]):
    tokenizer = load(byte_level("gpt-2"), chat_template=PLAIN)
    with pytest.raises(ValueError, match=r"half of a surrogate pair, U\+D83D, at character 3"):
        tokenizer.encode("hi \ud83d")
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        tokenizer.encode_chat([{"role": "user", "content": "\udc00"}])
    with pytest.raises(ValueError, match="text must be a string, found bytes"):
        tokenizer.encode(b"hi")  # type: ignore[arg-type]
