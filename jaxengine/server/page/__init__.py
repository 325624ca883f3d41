"""The chat page: one HTML document with its styles and scripts inline, which asks nothing of any other host.

Its policy lets nothing run but the very text that was assembled here, so even a flaw in the page could not be
turned into a request to somewhere else.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

SCRIPTS = ("markdown.js", "api.js", "live.js", "chat.js")      # in the order in which they need each other


def _read(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")


def _source(text: str) -> str:
    """How a content security policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class ChatPage:
    """The page and its headers, assembled once."""

    def __init__(self) -> None:
        style, script = _read("style.css"), "\n".join(_read(name) for name in SCRIPTS)
        html = _read("index.html").replace("/*{{style.css}}*/", style).replace("/*{{scripts}}*/", script)
        self.body = html.encode()
        self.headers = {
            "Content-Security-Policy": (
                f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; connect-src 'self'; "
                "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
            "Cache-Control": "no-cache",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }

    async def get(self, request: Request) -> Response:
        return Response(self.body, headers=self.headers, media_type="text/html")
