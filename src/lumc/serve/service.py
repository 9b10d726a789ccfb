"""What both protocols ask: models by name, runs, whether it is ready."""

from __future__ import annotations

from dataclasses import dataclass

from lumc.errors import Exit, LumcError
from lumc.serve.jobs import Broken, Full, Gate, Late
from lumc.serve.metrics import AccessLog, Metrics
from lumc.serve.pool import Pool
from lumc.serve.spec import WRITES, Array, Query, Spec
from lumc.serve.tensors import Refused

RETRY_S = "1"  # when a full queue has room again: it moves all the time


@dataclass
class Service:
    """Models that are served, and what is counted of it."""

    pool: Pool
    gate: Gate
    metrics: Metrics
    log: AccessLog
    most: int  # bytes of a request; 0: what the models need
    draining: bool = False  # it ends: what comes is answered, and told not to come back

    @property
    def is_ready(self) -> bool:
        return self.pool.is_ready and not self.draining

    def spec(self, name: str, version: str = "") -> Spec:
        """A model by its name. Raises Refused."""
        from lumc.serve.protocol import VERSION

        if name not in self.pool.specs or version not in ("", VERSION):
            known = ", ".join(self.pool.specs)
            raise Refused(404, f"no model {name[:100]!r}, version 1; models: {known}")
        return self.pool.specs[name]

    async def run(self, query: Query) -> dict[str, Array]:
        """The outputs. Raises what ``refusal`` knows."""
        if self.spec(query.model).texts == WRITES:
            raise Refused(400, "a language model goes on with texts: POST /v1/completions")
        found: dict[str, Array] = await self.pool.ask(query)
        return found

    def of_texts(self, name: str, texts: str) -> Spec:
        """A model that does this with texts. Raises Refused."""
        spec = self.spec(name)
        if spec.texts != texts:
            known = ", ".join(s.name for s in self.pool.specs.values() if s.texts == texts)
            raise Refused(400, f"{name} {texts} no texts; models that do: {known or 'none'}")
        return spec


def refusal(e: Exception) -> Refused | None:
    """What is said of an error that is no fault of the server's code."""
    match e:
        case Refused():
            return e
        case Full():
            return Refused(503, "too many requests wait already")
        case Late():
            return Refused(504, "there was no answer in time")
        case Broken():
            return Refused(500, "the process that runs models ended twice with this request")
        case LumcError() if e.exit == Exit.USAGE:
            return Refused(400, f"{e.code} {e.what}")
        case LumcError():
            return Refused(500, f"{e.code} {e.what}")
    return None
