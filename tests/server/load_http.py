"""HTTP/1.1 on bare sockets: light enough for a crowd on the cores that the server needs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Reply:
    """status 0: the client left before there was one. events: JSON of each event, "[DONE]" as it is."""

    status: int = 0
    body: bytes = b""
    events: list[Any] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A connection for each request."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._host, self._port = place.hostname, place.port or 80

    async def get(self, path: str) -> Reply:
        return await self._exchange(self._head("GET", path), None)

    async def post(
        self, path: str, body: Any, *, headers: dict[str, str] | None = None, leave_after: int | None = None,
        leave_within: float | None = None,
    ) -> Reply:
        """body: bytes as they are, anything else as JSON. leave_after: events; leave_within: seconds."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        message = self._head("POST", path, len(data), headers) + data
        try:
            async with asyncio.timeout(leave_within):
                return await self._exchange(message, leave_after)
        except TimeoutError:
            return Reply()

    async def send_half(self, path: str, body: Any) -> None:
        """Promises a body, sends half of it, and leaves."""
        data = json.dumps(body).encode()
        _, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(self._head("POST", path, len(data)) + data[:len(data) // 2])
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.close()

    def _head(self, method: str, path: str, length: int = 0, headers: dict[str, str] | None = None) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}:{self._port}", "Connection: close"]
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    async def _exchange(self, message: bytes, leave_after: int | None) -> Reply:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=2**22)
        try:
            writer.write(message)
            reply = Reply(int((await reader.readline()).split()[1]))
            is_stream, is_chunked = False, False
            while (line := await reader.readline()).strip():
                is_stream |= line.lower().startswith(b"content-type: text/event-stream")
                is_chunked |= line.lower().startswith(b"transfer-encoding: chunked")
            if is_stream:
                await _read_events(reader, reply, leave_after)
            elif is_chunked:
                raise ValueError("an answer in one piece came in chunks")
            else:
                reply.body = await reader.read()
            return reply
        finally:
            writer.close()


async def _read_events(reader: asyncio.StreamReader, reply: Reply, leave_after: int | None) -> None:
    """The lines between the events hold the sizes of HTTP's chunks, and are passed over."""
    async for line in reader:
        if line.startswith(b"data: "):
            text = line[6:].strip().decode()
            reply.events.append(text if text == "[DONE]" else json.loads(text))
            if leave_after is not None and len(reply.events) >= leave_after:
                return
