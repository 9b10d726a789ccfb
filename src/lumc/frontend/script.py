"""Builder scripts: ``lumc import model.py:build`` runs trusted code that returns a Model."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

from lumc.errors import Exit, LumcError
from lumc.frontend.api.model import Model
from lumc.frontend.api.refusal import PACKAGE

USAGE = "write FILE.py:FUNCTION, for example model.py:build"


def import_script(source: str) -> Model:
    """Run ``FILE.py:FUNCTION`` (default ``build``) and return its model.

    E0330: no such file or function; E0331: the script failed; E0332: it returned no model.
    """
    name, _, function = source.rpartition(":") if ".py:" in source else (source, "", "build")
    path = Path(name)
    if not path.is_file():
        raise LumcError("E0330", f"no script {path}", fix=USAGE, exit=Exit.USAGE)
    module = _load(path)
    build = getattr(module, function, None)
    if not callable(build):
        known = sorted(k for k, v in vars(module).items() if _is_own(v, module))
        fix = f"its functions: {', '.join(known)}" if known else USAGE
        raise LumcError("E0330", f"{path} has no function '{function}'", fix=fix, exit=Exit.USAGE)
    try:
        with redirect_stdout(sys.stderr):  # stdout is the artifact's
            model = build()
    except LumcError:
        raise
    except Exception as e:
        raise _failed(path, e) from e
    if not isinstance(model, Model):
        what = f"{function}() returned {type(model).__name__}, not a Model"
        raise LumcError("E0332", what, where=str(path), exit=Exit.UNSUPPORTED)
    return model


def _is_own(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


def _load(path: Path) -> ModuleType:
    """Run the file as a module; its folder is importable meanwhile, as with ``python FILE``."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except LumcError:
        raise
    except Exception as e:
        raise _failed(path, e) from e
    finally:
        sys.path.remove(folder)
    return module


def _failed(path: Path, e: Exception) -> LumcError:
    """The user's error, where it happened in the user's code."""
    if isinstance(e, SyntaxError):
        where = f"{path}:{e.lineno}"
    else:
        frames = traceback.extract_tb(e.__traceback__)
        own = [f for f in frames if not f.filename.startswith((PACKAGE, "<frozen"))]
        where = ", called from ".join(f"{f.filename}:{f.lineno}" for f in reversed(own)) or str(
            path
        )
    return LumcError("E0331", f"{type(e).__name__}: {e}", where=where, exit=Exit.UNSUPPORTED)
