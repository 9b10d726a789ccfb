"""The native runner for Macs, as far as a machine that is none can tell: its Mach-O headers, its
signature, and that the bundle is made without it as well."""

import hashlib
import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_metal
from bundles import compiler
from lumc.link import link, mac, runners
from lumc.link.link import TargetCode, Tools

needs_zig = pytest.mark.skipif(
    not importlib.util.find_spec("ziglang"), reason="needs the ziglang wheel (lumc[metal])"
)
ARM64, EXECUTE = 0x100000C, 2
LOAD_DYLIB, CODE_SIGNATURE, BUILD_VERSION, MAIN = 0xC, 0x1D, 0x32, 0x80000028
MACOS = 1
SIGNATURE, DIRECTORY, AD_HOC = 0xFADE0CC0, 0xFADE0C02, 2


def commands(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The load commands of a 64-bit Mach-O: kind and content."""
    magic, cpu, _, kind, count, size, _, _ = struct.unpack("<8I", data[:32])
    assert (magic, cpu, kind) == (0xFEEDFACF, ARM64, EXECUTE)
    at = 32
    for _ in range(count):
        command, length = struct.unpack("<2I", data[at : at + 8])
        yield command, data[at : at + length]
        at += length
    assert at == 32 + size


def check_signature(data: bytes, command: bytes) -> None:
    """The hash of every page is in the code directory."""
    offset, size = struct.unpack("<2I", command[8:16])
    assert offset + size == len(data)
    magic, _, count, slot, start = struct.unpack(">5I", data[offset : offset + 20])
    assert (magic, slot) == (SIGNATURE, 0) and count >= 1
    directory = data[offset + start :]
    fields = struct.unpack(">9I4B", directory[:40])
    magic, _, _, flags, hashes, _, _, slots, limit, width, kind, _, page = fields
    assert (magic, width, kind) == (DIRECTORY, 32, 2) and flags & AD_HOC  # sha256
    assert limit == offset and slots == -(-limit >> page)
    for i in range(slots):
        content = data[i << page : min((i + 1) << page, limit)]
        assert hashlib.sha256(content).digest() == directory[hashes + 32 * i : hashes + 32 * i + 32]


@needs_zig
def test_a_signed_program_for_arm64_that_needs_the_system_only(tmp_path: Path) -> None:
    path = fake_metal.link(fake_metal.counter(), tmp_path / "m.lb", tmp_path)
    data = (path / mac.NAME).read_bytes()
    assert (path / mac.NAME).stat().st_mode & 0o111
    found = list(commands(data))
    kinds = [kind for kind, _ in found]
    assert kinds.count(CODE_SIGNATURE) == kinds.count(MAIN) == 1
    libraries = [c[24:].split(b"\0")[0].decode() for kind, c in found if kind == LOAD_DYLIB]
    assert libraries == ["/usr/lib/libSystem.B.dylib"]
    (version,) = (c for kind, c in found if kind == BUILD_VERSION)
    assert struct.unpack("<2I", version[8:16]) == (MACOS, 13 << 16)
    check_signature(data, next(c for kind, c in found if kind == CODE_SIGNATURE))
    with pytest.raises(AssertionError):
        check_signature(data[:4096] + b"\1" + data[4097:], found[kinds.index(CODE_SIGNATURE)][1])
    # the same bytes again
    runners.compile_mac_runner.cache_clear()
    again = fake_metal.link(fake_metal.counter(), tmp_path / "again.lb", tmp_path)
    assert (again / mac.NAME).read_bytes() == data


def test_without_the_wheel_the_bundle_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mac, "compiler", lambda kept: None)
    parts = [TargetCode(fake_metal.counter(), "0" * 64)]
    notes = link.link(parts, tmp_path / "m.lb", tmp_path, Tools(compiler()), single=False)
    assert notes == [mac.LEFT_OUT] and "pip install" in notes[0]
    assert not (tmp_path / "m.lb" / mac.NAME).exists()
