"""`python instructor_objects.py URL MODEL`: instructor, by tools and by JSON schemas, prints what it got as JSON."""

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]


class Place(BaseModel):
    city: Literal["Paris", "Rome"]
    unit: Literal["C", "F"]


def ask(mode: instructor.Mode) -> dict[str, str]:
    client = instructor.from_openai(OpenAI(base_url=URL, api_key="x", max_retries=0), mode=mode)
    place = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], response_model=Place, temperature=0,
        max_retries=0,
    )
    return place.model_dump()


print(json.dumps({
    "tool": ["Place", ask(instructor.Mode.TOOLS)],
    "object": ask(instructor.Mode.JSON_SCHEMA),
}))
