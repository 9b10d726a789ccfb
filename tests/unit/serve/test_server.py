"""Where a server listens."""

from __future__ import annotations

import asyncio
import socket

from lumc.serve.server import bound


def test_small_answers_are_sent_at_once() -> None:
    """Else the body of an answer waits until the client acknowledges its head, 40 ms later."""

    async def nodelay() -> int:
        found = asyncio.get_running_loop().create_future()

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            of = writer.get_extra_info("socket")
            found.set_result(of.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        made = bound("127.0.0.1", 0)
        async with await asyncio.start_server(accepted, sock=made):
            _, writer = await asyncio.open_connection(*made.getsockname())
            try:
                return int(await asyncio.wait_for(found, 10))
            finally:
                writer.close()

    assert asyncio.run(nodelay())
