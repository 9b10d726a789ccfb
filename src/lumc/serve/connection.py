"""A connection of HTTP/1.1 whose heads are bounded.

The parser (llhttp, by way of httptools) keeps what a head has, however long it is, and every
request of a client that does not wait for answers. uvicorn bounds neither.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 1 << 16  # bytes of a request line and its headers, or of trailers
AHEAD = 16  # requests of a connection that wait for the answers before them


class Bounded(HttpToolsProtocol):  # type: ignore[misc]
    """Says 400 and closes where there is more. What is kept is at most ``HEAD`` bytes and one
    read of the socket."""

    beside = 0  # bytes since the last ones of a body, or since the end of a message

    def data_received(self, data: bytes) -> None:
        self.beside += len(data)
        super().data_received(data)
        if self.beside > HEAD and not self.transport.is_closing():
            self.send_400_response(f"a head has at most {HEAD} bytes")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= AHEAD:
            raise ValueError("too many requests before an answer")  # who parses says 400
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self.beside = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.beside = 0
        super().on_message_complete()
