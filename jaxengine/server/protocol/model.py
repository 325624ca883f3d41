"""Strict reading of a JSON object into a typed request.

`null` equals absent, whole numbers count as numbers, and nothing else is converted: no "4" or true for 4.
Unknown fields are tolerated, because clients and routers add their own. Fields that are known and not served
are refused by name.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from jaxengine.server.errors import ApiError, bad_request, shown

STRUCTURED_HINT = "use response_format or structured_outputs"


class StrictModel(BaseModel):
    """The base of every request and of the objects in it."""

    model_config = ConfigDict(strict=True, extra="ignore")

    # Field -> why it is refused, or what to use in its place.
    refused: ClassVar[dict[str, str]] = {}
    # Refused fields that may be there with one of these values, which ask for nothing.
    harmless: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @classmethod
    def read(cls, value: dict[str, Any]) -> Self:
        """Raises ApiError 400 naming the first field that is wrong."""
        present = {name: item for name, item in value.items() if item is not None}
        for name, reason in cls.refused.items():
            if name in present and not _among(present[name], cls.harmless.get(name, ())):
                raise bad_request(f"{name} is not supported{'; ' + reason if reason else ''}", name)
        try:
            return cls.model_validate(present)
        except ValidationError as error:
            raise _told(error) from None


def _among(value: Any, known: tuple[Any, ...]) -> bool:
    return any(type(value) is type(item) and value == item for item in known)


def _told(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    param = _path(first["loc"])
    if first["type"] == "missing":
        return bad_request(f"{param} is missing", param)
    wish = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return bad_request(f"{param}={shown(first['input'])} {wish}", param)


def _path(location: tuple[int | str, ...]) -> str:
    """('messages', 0, 'role') -> 'messages[0].role'. A client's own key is escaped."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "." * bool(text) + shown(part)[1:-1]
    return text
