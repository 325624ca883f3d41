"""`python llm_package.py URL MODEL`: the models of the package `llm` print what they got as JSON."""

import json
import sys

from llm.default_plugins.openai_models import Chat, Completion

URL, MODEL = sys.argv[1:]
PLACE = {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"], "additionalProperties": False,
}


def main() -> None:
    chat = Chat("local", model_name=MODEL, api_base=URL, supports_schema=True)
    completion = Completion("local-text", model_name=MODEL, api_base=URL)
    short = {"temperature": 0, "max_tokens": 8, "key": "x"}
    print(json.dumps({
        "text": chat.prompt("Hello", stream=False, **short).text(),
        "streamed": "".join(chat.prompt("Hello", **short)),
        "completion": completion.prompt("Hello", stream=False, **short).text(),
        "object": json.loads(chat.prompt("Hello", schema=PLACE, temperature=0, key="x").text()),
    }))


main()
