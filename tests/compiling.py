"""Programs in C for tests, of files of the native runner."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bundles import compiler
from once import folder_of

ROOT = Path(__file__).parents[1]
RUNNER = ROOT / "src" / "lumc" / "link" / "runner"
ASAN = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
TSAN = ("-fsanitize=thread", "-g")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
STRICT = ("-std=gnu11", *WARNINGS)
# a third of the time of -O1, and sanitizers see every access of the source; ``test_runner`` asks
# for warnings as they come with optimisation
QUICK = ("-O0",)
Change = tuple[str, str]  # a text that stands once in a file, and another in its place


def compile_c(text: str, out: Path, sources: Sequence[str], flags: Sequence[str] = ()) -> Path:
    """A program from a text and files of the runner, warnings being errors."""
    main = out.with_suffix(".c")
    main.write_text(text)
    every = (*STRICT, *QUICK, *flags)
    command = [*compiler().command, *every, f"-I{RUNNER}", main, *objects(sources, every)]
    subprocess.run([*command, "-o", out, "-pthread", "-ldl"], check=True)
    return out


def link(
    names: Sequence[str], flags: Sequence[str], out: Path, changes: Mapping[str, Change] = {}
) -> Path:
    """A program, or a library with ``-shared``, of files of the runner."""
    command = [*compiler().command, *flags, *objects(names, flags, changes), "-o", out]
    subprocess.run([*command, "-pthread", "-ldl"], check=True)
    return out


def objects(
    names: Sequence[str], flags: Sequence[str], changes: Mapping[str, Change] = {}
) -> list[Path]:
    """Objects of files of the runner, a piece of text exchanged in some of them. All tests of a run
    share what was compiled of the same text with the same flags."""
    assert changes.keys() <= set(names)
    found = []
    for name in names:
        text = (RUNNER / f"{name}.c").read_text()
        if name in changes:
            old, new = changes[name]
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        found.append(_object(name, text, flags))
    return found


def _object(name: str, text: str, flags: Sequence[str]) -> Path:
    def make(folder: Path) -> None:
        (folder / f"{name}.c").write_text(text)
        command = [*compiler().command, *flags, f"-I{RUNNER}", "-c", f"{name}.c"]
        subprocess.run(command, check=True, cwd=folder)

    key = hashlib.sha256(repr((name, text, *flags)).encode()).hexdigest()[:20]
    return folder_of(f"{name}-{key}", make) / f"{name}.o"
