"""What is counted, as Prometheus reads it; and a line of JSON for every request."""

from __future__ import annotations

import queue
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64)
LINES = 10_000  # that may wait to be written; more are dropped: a log never stops an answer


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        r = self.registry = CollectorRegistry()
        names = ("model", "protocol", "code")
        self.requests = Counter("lumc_requests", "Requests answered.", names, registry=r)
        self.seconds = Histogram(
            *("lumc_request_seconds", "From a request to its answer.", ("model", "protocol")),
            registry=r,
            buckets=BUCKETS,
        )
        self.runs = Histogram(
            *("lumc_run_seconds", "One run in a worker, with the way there.", ("model",)),
            registry=r,
            buckets=BUCKETS,
        )
        self.rows = Histogram(
            "lumc_run_rows", "Rows of one run.", ("model",), registry=r, buckets=ROWS
        )
        self.waiting = Gauge("lumc_waiting", "Jobs that wait for a worker.", registry=r)
        self.inside = Gauge("lumc_inside", "Requests that are being answered.", registry=r)
        self.replaced = Counter("lumc_workers_replaced", "Workers that ended.", registry=r)
        self.swapped = Counter("lumc_swaps", "Times that bundles were exchanged.", registry=r)

    def ran(self, model: str, rows: int, seconds: float) -> None:
        self.runs.labels(model).observe(seconds)
        self.rows.labels(model).observe(rows)

    def answered(self, model: str, protocol: str, code: str, seconds: float) -> None:
        """``model`` is one that there is, or "": strangers make no labels."""
        self.requests.labels(model, protocol, code).inc()
        self.seconds.labels(model, protocol).observe(seconds)

    def text(self) -> tuple[bytes, str]:
        """The page, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class AccessLog:
    """Writes to stdout, in a thread of its own: who reads slowly loses lines, and slows nobody."""

    def __init__(self, on: bool) -> None:
        self.lines: queue.Queue[bytes | None] | None = queue.Queue(LINES) if on else None
        self.thread = threading.Thread(target=self._write, daemon=True)
        if on:
            self.thread.start()

    def __call__(self, **said: Any) -> None:
        if self.lines is not None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            with suppress(queue.Full):
                self.lines.put_nowait(msgspec.json.encode({"time": now, **said}) + b"\n")

    def close(self) -> None:
        """Write what waits, for a second at most."""
        if self.lines is not None:
            with suppress(queue.Full):
                self.lines.put_nowait(None)
            self.thread.join(1)

    def _write(self) -> None:
        assert self.lines is not None
        while (line := self.lines.get()) is not None:
            with suppress(OSError, ValueError):  # nobody reads it any more
                sys.stdout.buffer.write(line)
                if self.lines.empty():
                    sys.stdout.buffer.flush()
