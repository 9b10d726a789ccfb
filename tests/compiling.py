"""Programs in C for tests, of files of the native runner."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from bundles import compiler

ROOT = Path(__file__).parents[1]
RUNNER = ROOT / "src" / "lumc" / "link" / "runner"
ASAN = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
TSAN = ("-fsanitize=thread", "-g")


def compile_c(
    text: str, out: Path, sources: Sequence[str], flags: Sequence[str] = (), opt: str = "-O1"
) -> Path:
    """A program from a text and files of the runner, warnings being errors."""
    main = out.with_suffix(".c")
    main.write_text(text)
    files = [str(main), *(str(RUNNER / f"{s}.c") for s in sources)]
    warnings = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")
    command = [*compiler().command, *warnings, opt, *flags, f"-I{RUNNER}", *files]
    subprocess.run([*command, "-o", str(out), "-pthread", "-ldl"], check=True)
    return out
