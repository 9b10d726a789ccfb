"""A stand-in for ssh: commands run here, each host as its folder of this name says."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

FAKE = """#!/bin/sh
# ssh [options] HOST COMMAND: runs it on this machine
for word; do host=$command; command=$word; done
echo "$host $*" >> {folder}/calls
there={folder}/hosts/${{host#*@}}
if [ ! -d "$there" ]; then echo "ssh: Could not resolve hostname $host" >&2; exit 255; fi
[ -f "$there/greeting" ] && cat "$there/greeting"
[ -f "$there/instead" ] && command=$(cat "$there/instead")
PYTHONPATH="$there:$PYTHONPATH" exec sh -c "$command"
"""
OTHER = "import os\nos.cpu_count = lambda: 77\n"  # a machine of another kind


def fake(folder: Path, *hosts: str) -> str:
    """A program that knows these hosts, for $LUMC_SSH."""
    for host in hosts:
        (folder / "hosts" / host).mkdir(parents=True)
    program = folder / "ssh"
    program.write_text(FAKE.format(folder=shlex.quote(str(folder))))
    program.chmod(0o755)
    return str(program)


def of_another_kind(folder: Path, host: str) -> None:
    (folder / "hosts" / host / "sitecustomize.py").write_text(OTHER)


def instead(folder: Path, host: str, *lines: object, then: str = "exit 3") -> None:
    """A host where something else answers: these lines, then that command."""
    said = "\n".join(x if isinstance(x, str) else f"lumc: {json.dumps(x)}" for x in lines)
    there = folder / "hosts" / host
    (there / "lines").write_text(said + "\n" * bool(lines))
    (there / "instead").write_text(f"cat {shlex.quote(str(there / 'lines'))}; {then}")


def calls(folder: Path) -> list[list[str]]:
    """The words of each call, behind the host."""
    return [shlex.split(line) for line in (folder / "calls").read_text().splitlines()]


PYTHON = sys.executable
