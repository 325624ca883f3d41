"""`jaxengine serve`: every server setting has a flag, and what is wrong is told before a model is loaded."""

import argparse
from dataclasses import fields

import pytest

from jaxengine.cli import main, serve
from jaxengine.server.settings import ServerSettings


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    serve.add_arguments(parser)
    return parser.parse_args(["some-model", *argv])


def test_every_setting_has_a_flag_and_no_flag_is_left_over():
    assert set(serve.FLAGS) == {field.name for field in fields(ServerSettings)}


def test_what_is_not_given_is_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAXENGINE_API_KEY", raising=False)
    assert serve.server_settings(parse()) == ServerSettings()


def test_flags_arrive():
    settings = serve.server_settings(parse(
        "--host", "::1", "--port", "0", "--api-key", "a", "--api-key", "b", "--served-model-name", "x",
        "--served-model-name", "y", "--max-body-bytes", "1M", "--request-timeout", "2.5", "--enable-priority",
    ))
    assert settings == ServerSettings(
        host="::1", port=0, api_key=("a", "b"), served_model_name=("x", "y"), max_body_bytes=1 << 20,
        request_timeout=2.5, enable_priority=True,
    )


def test_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAXENGINE_API_KEY", "secret")
    assert serve.server_settings(parse()).api_key == ("secret",)
    assert serve.server_settings(parse("--api-key", "other")).api_key == ("other",)
    monkeypatch.setenv("JAXENGINE_API_KEY", "")
    with pytest.raises(ValueError, match="api_key='' is empty"):
        serve.server_settings(parse())


@pytest.mark.parametrize(("argv", "message"), [
    (["--api-key", ""], "api_key='' is empty"), (["--port", "70000"], "port=70000"),
    (["--max-num-seqs", "0"], "max_num_seqs=0"), (["--chat-template", "/nowhere/t.jinja"], "/nowhere/t.jinja"),
])
def test_wrong_values_are_told(capsys: pytest.CaptureFixture[str], argv: list[str], message: str):
    assert main.main(["serve", "some-model", *argv]) == main.USAGE
    assert message in capsys.readouterr().err
