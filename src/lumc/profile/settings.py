"""The machines that timing records come from: what differs from here, and which one is chosen."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lumc.disk.project import looked
from lumc.errors import Exit, LumcError, printable
from lumc.profile.records import HEAD, NAME, Records, Setting, read_lines

WORDS = {  # of what a machine says, in the order of telling
    **{"gpu": "GPU", "cpu": "CPU", "model": "its model", "cache": "cache", "cores": "cores"},
    **{"compiler": "compiler", "features": "instructions", "lumc": "lumc", "egglog": "egglog"},
}
MADE_BY = ("lumc", "egglog")  # what kernels may depend on, and no time
LISTED = 3  # machines that a message names; a guess


@dataclass
class Known:
    """What is on record of a setting: the kernels that were searched, and what it is."""

    setting: Setting
    kernels: set[str] = field(default_factory=set)
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What --device-records takes."""
        return f"{self.setting.device}/{self.setting.tools}"


def words(said: Mapping[str, Any]) -> str:
    """The processor and the compiler, where they are on record."""
    cores = f"{said['cores']} cores" if said.get("cores") else ""
    names = (said.get("gpu"), said.get("cpu"), cores, said.get("compiler"))
    return printable(", ".join(str(name) for name in names if name)) or "an unknown machine"


def known_settings(path: Path) -> list[Known]:
    """Every setting of a file of records, in the order of their first lines."""
    out = dict[str, Known]()
    for line in read_lines(path):
        device, tools, threads = (line.get(name) for name in ("device", "tools", "threads"))
        if not isinstance(device, str) or not isinstance(tools, str) or type(threads) is not int:
            continue
        at = json.dumps([device, tools, threads])
        known = out.setdefault(at, Known(Setting(device, tools, threads)))
        if line.get("kind") == "machine":
            said = {k: v for k, v in line.items() if k not in HEAD}
            known.said = {k: v for k, v in said.items() if type(v) in (int, str)}
        elif line.get("kind") == "choice":
            known.kernels.add(str(line.get("kernel")))
    return list(out.values())


def choose(folder: Path, wanted: str, threads: int) -> Known:
    """The setting whose name, DEVICE/TOOLS, begins as wanted: both of its parts. Raises E0203."""
    device, _, tools = wanted.partition("/")
    every = [k for k in known_settings(folder / NAME) if k.kernels]
    found = [
        k
        for k in every
        if k.setting.device.startswith(device)
        and k.setting.tools.startswith(tools)
        and k.setting.threads == threads
    ]
    if len(found) == 1 and wanted:
        return found[0]
    count = "several" if found else "none"
    what = f"--device-records {wanted}: {count} of the records for {threads} threads are of that"
    fix = "name one of these: " + ", ".join(sorted({k.name for k in found or every}))
    fix = fix if every else "lumc cache list says what is on record"
    raise LumcError("E0203", what, where=looked(folder), fix=fix, exit=Exit.USAGE)


def mismatch(records: Records, missed: Collection[str]) -> str:
    """Where records of these kernels were looked for, and what is there instead."""
    if records.path is None:
        return ""
    others = [k for k in known_settings(records.path) if k.setting != records.setting]
    near = [(len(k.kernels & set(missed)), k) for k in others]
    near = sorted((n for n in near if n[0]), key=lambda n: -n[0])
    lines = [looked(records.path.parent)]
    for count, k in near[:LISTED]:
        many = f"{count} kernel{'s' if count > 1 else ''} of this model"
        lines.append(f"it has {many} for {_told(k)}: {differences(k, records)}")
    if len(near) > LISTED:
        lines.append(f"and for {len(near) - LISTED} more: lumc cache list")
    if others and not near:
        made = _made(others, records)
        lines.append(f"it has none of this model, target and dtype for any machine{made}")
    return "\n         ".join(lines)


def _told(k: Known) -> str:
    s = k.setting
    return f"device {s.device}, tools {s.tools}, threads {s.threads}"


def differences(k: Known, own: Known | Records) -> str:
    """What another setting has that this one has not."""
    here, there, said = own.setting, k.setting, list[str]()
    for name, word in WORDS.items():
        a, b = k.said.get(name), own.said.get(name)
        if name in MADE_BY or a is None or b is None or a == b:
            continue
        if name == "features":
            a, b = _others(a, b), _others(b, a)
        said.append(f"{word} {a} (here {b})")
    if here.threads != there.threads:
        said.append(f"threads {there.threads} (here {here.threads})")
    for name in ("device", "tools"):
        mine, other = getattr(here, name), getattr(there, name)
        if mine != other and not k.said:
            said.append(f"{name} {other} (here {mine})")
    return ", ".join(said) or "flags of the compiler"


def _others(some: str, known: str) -> str:
    """The words of a text that the other one has not."""
    return " ".join(sorted(set(some.split()) - set(known.split()))) or "fewer"


def _made(others: Collection[Known], records: Records) -> str:
    """The versions that wrote them, where these differ from those here."""
    said = list[str]()
    for name in MADE_BY:
        there = {str(k.said[name]) for k in others if name in k.said} - {records.said.get(name)}
        if there and name in records.said:
            said.append(f"{name} {' or '.join(sorted(there))} (here {records.said[name]})")
    return f"; they were made by {', '.join(said)}" if said else ""
