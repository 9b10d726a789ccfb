"""CUDA compilers: which one is taken, what it makes, and what an image says of its kernels."""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path

import pytest

from lumc.codegen.text.headers import NAMES, header_of
from lumc.errors import Exit, LumcError
from lumc.link import cuda, nvrtc
from lumc.link.cuda import Compiler, Figures

HEADER = NAMES["cuda"]
TEXT = """#include "lumc_dev.h"
extern "C" __global__ void __launch_bounds__(128) k0_divide(const float *a, float *b)
{
    __shared__ float s[128];
    s[threadIdx.x] = a[threadIdx.x];
    lumc_sync();
    b[threadIdx.x] = s[127 - threadIdx.x] / a[0];
}
extern "C" __global__ void __launch_bounds__(1024) k1_spill(const float *a, float *b, int n)
{
    float v[100];
    for (int i = 0; i < 100; ++i) v[i] = a[i * 1024 + threadIdx.x];
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < 100; ++i) v[i] *= v[(i + 1) % 100];
    for (int i = 0; i < 100; ++i) b[i * 1024 + threadIdx.x] = v[i];
}
"""


def compilers() -> list[Compiler]:
    """Those that are here: nvcc, and NVRTC of a wheel."""
    found = []
    for command in cuda.candidates():
        if shutil.which(command[0]):
            found.append(Compiler(command, command[-1]))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the header of kernels, and kernels.cu."""
    (tmp_path / HEADER).write_text(header_of("cuda"))
    (tmp_path / "kernels.cu").write_text(TEXT)
    return tmp_path


def scripted(folder: Path, lines: str) -> Compiler:
    """A compiler that is a shell script: its last argument is the output."""
    path = folder / "nvcc.sh"
    path.write_text(f'#!/bin/sh\necho "$@" >> calls\nfor last; do :; done\n{lines}\n')
    path.chmod(0o755)
    return Compiler((str(path),), "1.0", folder / "kept")


@pytest.mark.skipif(not compilers(), reason="no nvcc and no nvidia-cuda-nvrtc here")
def test_images_for_every_architecture(folder: Path, tmp_path: Path) -> None:
    """Real cubins, the same in every folder, that say what their kernels take."""
    for compiler in compilers():
        archs = (*cuda.IMAGES, cuda.TEXT)
        cuda.compile_images(compiler, folder, "kernels.cu", archs)
        for arch in cuda.IMAGES:
            image = (folder / f"kernels.{arch}.cubin").read_bytes()
            assert image[:4] == b"\x7fELF" and image[18:20] == struct.pack("<H", cuda.EM_CUDA)
            found = cuda.figures(image)
            assert set(found) == {"k0_divide", "k1_spill"}
            assert 0 < found["k0_divide"].registers <= 64 and not found["k0_divide"].local_bytes
            assert found["k0_divide"].shared_bytes in (512, 1536)  # 1024 are the system's
            assert found["k1_spill"].registers == 64 and found["k1_spill"].local_bytes > 100
            assert str(folder).encode() not in image
        text = (folder / "kernels.ptx").read_text()
        assert ".target sm_80" in text and text.count(".visible .entry") == 2
        other = tmp_path / "other"
        other.mkdir(exist_ok=True)
        for name in ("kernels.cu", HEADER):
            shutil.copy(folder / name, other)
        compiler.image(other, "kernels.cu", "sm_90a", "again")
        assert (other / "again").read_bytes() == (folder / "kernels.sm_90.cubin").read_bytes()


@pytest.mark.skipif(not compilers(), reason="no nvcc and no nvidia-cuda-nvrtc here")
def test_what_a_compiler_refuses(folder: Path) -> None:
    (folder / "bad.cu").write_text("int x = ;\n")
    for compiler in compilers():
        with pytest.raises(
            LumcError, match=r"E0702 the compiler refused bad\.cu: .*expected an"
        ) as e:
            compiler.image(folder, "bad.cu", "sm_90", "bad.cubin")
        assert "$NVCC" in e.value.fix and not (folder / "bad.cubin").exists()


def test_semantics_of_the_flags() -> None:
    """NaN and infinity are values: nothing that assumes there are none."""
    assert not any("fast" in flag for flag in cuda.FLAGS)
    assert {"--ftz=false", "--prec-div=true", "--prec-sqrt=true"} <= set(cuda.FLAGS)


def test_an_image_is_made_once(folder: Path) -> None:
    """Per text, header, architecture and compiler."""
    compiler = scripted(folder, 'cat kernels.cu > "$last"')

    def calls() -> int:
        cuda.compile_images(compiler, folder, "kernels.cu", ("sm_80", "sm_90", "compute_80"))
        return len((folder / "calls").read_text().splitlines())

    assert calls() == 3 and calls() == 3
    said = (folder / "calls").read_text()
    assert "-cubin -arch=sm_90a" in said and "-ptx -arch=compute_80" in said
    (folder / HEADER).write_text("/* another one */\n")
    assert calls() == 6
    (folder / "kernels.cu").write_text(TEXT + "\n")
    assert calls() == 9
    assert len({p.name for p in (folder / "kept").iterdir()}) == 9


def test_a_failure_is_an_error(folder: Path) -> None:
    compiler = scripted(folder, 'echo "kernels.cu(1): error: no" >&2; exit 2')
    with pytest.raises(LumcError, match=r"refused kernels\.cu: .* error: no") as e:
        compiler.image(folder, "kernels.cu", "sm_90", "x")
    assert e.value.code == "E0702"
    with pytest.raises(LumcError, match=r"no result in 0\.2 s"):
        scripted(folder, "sleep 60").image(folder, "kernels.cu", "sm_90", "x", seconds=0.2)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuda, "nvrtc_libraries", list)
    with pytest.raises(LumcError, match="E0705 no CUDA compiler: nothing -v"):
        cuda.find("nothing -v")
    with pytest.raises(LumcError, match="E0705 no CUDA compiler") as e:
        cuda.find()
    assert e.value.exit == Exit.TOOLCHAIN and "nvidia-cuda-nvrtc" in e.value.fix


def test_the_order_of_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one that is named; the newest NVRTC of the wheels, nvcc."""
    for version in ("12", "13"):
        lib = tmp_path / "nvidia" / f"cu{version}" / "lib"
        lib.mkdir(parents=True)
        for name in (f"libnvrtc.so.{version}", f"libnvrtc-builtins.so.{version}.0"):
            (lib / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    ours = [str(p) for p in cuda.nvrtc_libraries() if p.is_relative_to(tmp_path)]
    assert [Path(p).name for p in ours] == ["libnvrtc.so.13", "libnvrtc.so.12"]
    every = list(cuda.candidates())
    assert every[-1] == ("nvcc",) and list(cuda.candidates("ccache nvcc")) == [("ccache", "nvcc")]
    found = [c for c in every if c[-1] in ours]  # beside those of this machine
    assert [c[-2:] for c in found] == [(nvrtc.__file__, path) for path in ours]
    nvcc = scripted(tmp_path, "echo 'release 13.0, V13.0.88'").command[0]
    monkeypatch.chdir(tmp_path)
    assert cuda.find(nvcc) == Compiler((nvcc,), "release 13.0, V13.0.88")


# ---- figures


def elf(sections: dict[str, bytes], machine: int = cuda.EM_CUDA) -> bytes:
    """An ELF file of these sections; names that end in "?" have a size and no bytes."""
    names, body, rows = b"\0", b"", [bytes(64)]
    for name, data in {**sections, ".shstrtab": b""}.items():
        at, kind = len(names), 8 if name.endswith("?") else 1
        names += name.removesuffix("?").encode() + b"\0"
        data = names if name == ".shstrtab" else data
        fields = (at, kind, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        rows.append(struct.pack("<IIQQQQIIQQ", *fields))
        body += b"" if kind == 8 else data
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQ", 2, machine, 1, 0, 0, 64 + len(body))
    head += struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, len(rows), len(rows) - 1)
    return head + body + b"".join(rows)


def test_figures_of_an_image() -> None:
    strings = b"\0k0\0k1\0"
    table = b"".join(struct.pack("<IBBHQQ", name, 0, 0, 0, 0, 0) for name in (0, 4, 1))
    info = struct.pack("<BBH", 3, 0x50, 7)  # an attribute without a symbol
    for attribute, symbol, value in ((0x2F, 1, 40), (0x11, 1, 16), (0x2F, 2, 99), (0x12, 2, 7)):
        info += struct.pack("<BBHII", 4, attribute, 8, symbol, value)
    image = elf(
        {
            ".text.k0": b"code",
            ".text.k1": b"code",
            ".nv.shared.k0?": bytes(2048),
            ".nv.info": info,
            ".symtab": table,
            ".strtab": strings,
        }
    )
    assert cuda.figures(image) == {"k0": Figures(99, 0, 2048), "k1": Figures(40, 16, 0)}
    assert cuda.figures(elf({".text.k0": b""}, machine=62)) == {}
    assert cuda.figures(b"// PTX") == {}
