"""tools and tool_choice as the OpenAPI document shows them; `server.tool_calls.choice` reads them."""

from __future__ import annotations

MAX_TOOLS = 128
NAME_PATTERN = "[A-Za-z0-9_-]{1,64}"      # of tools and of schemas

TOOLS_SCHEMA = {
    "description": "Functions that the model may call.",
    "anyOf": [{"type": "null"}, {"type": "array", "maxItems": MAX_TOOLS, "items": {
        "type": "object", "required": ["type", "function"], "properties": {
            "type": {"const": "function"},
            "function": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
                "description": {"type": ["string", "null"]}, "parameters": {"type": ["object", "null"]},
                "strict": {"type": ["boolean", "null"]},
            }},
        },
    }}],
}
CHOICE_SCHEMA = {
    "description": "'required' and a named tool are forced; 'auto' needs a model whose way to call is known.",
    "anyOf": [
        {"type": "null"}, {"enum": ["none", "auto", "required"]},
        {"type": "object", "required": ["type", "function"], "properties": {
            "type": {"const": "function"},
            "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        }},
    ],
}
