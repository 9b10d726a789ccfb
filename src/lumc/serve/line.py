"""Questions to a process from a loop of events.

A thread that sends a question, waits for the answer and wakes the loop takes longer than all else
that is done for a small request.
"""

from __future__ import annotations

import asyncio
from multiprocessing.reduction import ForkingPickler
from typing import Any

from lumc.process import Process, hung

SMALL = 1 << 16  # bytes that are sent at once, whatever the process does


class Line:
    """A process and the way to it, for one question at a time."""

    def __init__(self, process: Process) -> None:
        self.process, self.kill = process, process.kill

    @property
    def is_cut(self) -> bool:
        """Whether the process has ended."""
        return self.process.process.poll() is not None

    async def ask(self, question: tuple[Any, ...], seconds: float) -> Any:
        """The answer; raises Lost when there is none."""
        pipe, message = self.process.pipe, ForkingPickler.dumps(question)
        try:
            async with asyncio.timeout(seconds):
                if len(message) > SMALL:
                    await asyncio.to_thread(pipe.send_bytes, message)
                else:
                    pipe.send_bytes(message)
                await readable(pipe.fileno())
            return pipe.recv()
        except TimeoutError:
            raise hung(seconds) from None
        except (EOFError, OSError):
            raise await asyncio.to_thread(self.process.crashed) from None


async def readable(descriptor: int) -> None:
    """Until there is something to read, or the other side has closed."""
    loop = asyncio.get_running_loop()
    there = loop.create_future()

    def hear() -> None:
        loop.remove_reader(descriptor)
        there.set_result(None)

    loop.add_reader(descriptor, hear)
    try:
        await there
    finally:
        loop.remove_reader(descriptor)
