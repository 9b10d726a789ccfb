"""The one error a user sees, and the exit codes of every command."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Process exit codes; documented in docs/errors.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    MISMATCH = 3  # verify or diff found a difference, bench a slower bundle
    UNSUPPORTED = 4  # the input uses something lumc cannot compile
    CORRUPT = 5  # a corrupt or unsafe artifact
    BUDGET = 6  # budget spent without a valid candidate
    TOOLCHAIN = 7  # a device or compiler is missing
    INTERRUPTED = 130
    TERMINATED = 143  # by SIGTERM


class LumcError(Exception):
    """A problem stated once: what happened, where in the user's file, and the fix.

    ``code`` is a stable identifier (``E0312``), which 'lumc explain E0312' explains; ``what``,
    ``where`` and ``fix`` are its lines, ``exit`` is the exit code of the command.
    """

    def __init__(
        self, code: str, what: str, *, where: str = "", fix: str = "", exit: Exit = Exit.FAILED
    ) -> None:
        what = printable(what).replace("\n", "\\n")  # of one line: names in it may be a stranger's
        super().__init__(what)
        self.code, self.what, self.exit = code, what, exit
        self.where, self.fix = printable(where), printable(fix)

    def __str__(self) -> str:
        lines = [f"{self.code} {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


def printable(text: str) -> str:
    """A text that cannot move the cursor: what could is spelled, but for line ends and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
