"""The library as a guest in somebody's program: its names, its version, the glibc that it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import elf
from bundles import build, compiler, mlp
from lumc import __version__
from lumc.link import glibc, link

RUNNER = Path(link.__file__).parent / "runner"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ELF files")

CLASH = r"""
#include <lumc.h>
#include <stdio.h>
#include <string.h>
%s
int main(int argc, char **argv) {
  lumc *model;
  float x[5 * 11] = {1}, y[5 * 3];
  const void *in[] = {x};
  void *out[] = {y};
  if (argc < 2 || strcmp(lumc_version(), LUMC_VERSION)) return 1;
  int code = lumc_open(argv[1], 2, &model);
  if (!code) code = lumc_run(model, 0, in, out);
  if (code) fprintf(stderr, "%%s\n", lumc_error());
  lumc_close(model);
  return code;
}
"""
GENERIC = re.compile(r"^(?:[\w*]+ )*\*?(?!lumc_)(\w+)\(", re.MULTILINE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("guest")
    return build(mlp(base)[0], base / "m.lb", base)


def test_the_library_exports_its_own_names_only(made: Path) -> None:
    found = elf.read(made / "lib" / "liblumc.so")
    assert {"lumc_open", "lumc_version"} <= found.exports
    assert not {name for name in found.exports if not name.startswith("lumc_")}
    header = set(re.findall(r"\b(lumc_\w+)\(", (RUNNER / "lumc.h").read_text()))
    assert found.exports == header, "lumc.h has the names of the library, and no other"


def test_soname_and_version(made: Path) -> None:
    """Linked by its path, a program would ask for that path."""
    assert elf.read(made / "lib" / "liblumc.so").soname == "liblumc.so"
    text = (made / "include" / "lumc.h").read_text()
    assert re.findall(r'#define LUMC_VERSION "(.*)"', text) == [__version__]
    run = [str(made / "bin" / "lumc-run"), "--version"]
    assert subprocess.check_output(run, text=True) == f"lumc-run {__version__}\n"


def test_it_starts_on_the_oldest_glibc_that_docs_name(made: Path) -> None:
    if not glibc.oldest(compiler()).compiling:
        pytest.skip("no glibc, or a compiler whose target says which")
    oldest = tuple(map(int, glibc.OLDEST.split(".")))
    for name in ("lib/liblumc.so", "bin/lumc-run"):
        found = elf.read(made / name)
        assert found.glibc and found.glibc[-1] <= oldest, name
        assert set(glibc.STUBS) <= set(found.needs), name  # there these have what is called
    docs = (Path(__file__).parents[3] / "docs" / "bundle.md").read_text()
    assert f"glibc {glibc.OLDEST}" in docs


def test_a_host_with_the_same_names(made: Path, tmp_path: Path) -> None:
    """Every internal function has a namesake in the program, which ends it."""
    headers = "".join((RUNNER / h).read_text() for h in ("internal.h", "gpu.h", "metal.h"))
    names = {n for n in GENERIC.findall(headers) if n not in ("defined", "pool")}
    assert {"open_file", "npy_read", "reserve", "sha256_add"} <= names
    clashes = "\n".join(f"int {n}(void) {{ __builtin_trap(); }}" for n in sorted(names))
    (tmp_path / "clash.c").write_text(CLASH % clashes)
    library = f"-Wl,-rpath,{made / 'lib'}", f"-I{made / 'include'}", str(made / "lib/liblumc.so")
    command = [*compiler().command, "-fno-builtin", "-rdynamic", str(tmp_path / "clash.c")]
    subprocess.run([*command, *library, "-o", str(tmp_path / "clash")], check=True)
    assert elf.read(tmp_path / "clash").needs[0] == "liblumc.so"
    subprocess.run([str(tmp_path / "clash"), str(made)], check=True)
