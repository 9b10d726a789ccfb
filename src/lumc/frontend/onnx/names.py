"""Names of ONNX in the text form of graphs."""

from __future__ import annotations

from lumc.errors import Exit, LumcError
from lumc.frontend.api import names


def clean(name: str) -> str:
    """An ONNX name as a name of the text form. Raises E0310 for one that is no text: where bytes
    are no UTF-8, protobuf gives them as they are."""
    if not isinstance(name, str):
        fix = "the file is damaged: export the model again"
        raise LumcError("E0310", f"{name!r} is no name", fix=fix, exit=Exit.CORRUPT)
    return names.clean(name)
