"""The C text of a few kernels, reviewed by people: ``--update-golden`` rewrites it."""

from pathlib import Path

import pytest

import kernel_zoo as zoo
from lumc.codegen.c import print_kernel
from lumc.codegen.lower import lower
from lumc.kernel.space import default_schedule
from lumc.kernel.term import Kernel
from lumc.targets import resolve_target

FOLDER = Path(__file__).parent / "kernels"
KERNELS: dict[str, tuple[Kernel, str]] = {
    "linear_gelu": (zoo.linear_gelu(64, 96, 64), "x86-64-v4"),
    "linear_gelu_avx2": (zoo.linear_gelu(20, 24, 30), "x86-64-v3"),
    "softmax": (zoo.softmax(32, 64), "x86-64-v4"),
    "layernorm": (zoo.layernorm(32, 64), "x86-64-v4"),
    "masked_attention": (zoo.masked_attention(2, 64, 16), "x86-64-v4"),
    "conv": (zoo.conv(16, 4, 16, 16), "x86-64-v4"),
    "pad_iota": (zoo.pad_iota(6, 40), "x86-64-v4"),
    "embed": (zoo.embed(7, 50, 33), "x86-64-v4"),
    "cache_update": (zoo.cache_update(4, 8, 32), "x86-64-v4"),
    "typed_rows_i8": (zoo.typed_rows(5, 37, zoo.I8), "aarch64"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_text(name: str, request: pytest.FixtureRequest) -> None:
    k, arch = KERNELS[name]
    target = resolve_target(f"cpu:{arch}")
    text = print_kernel(lower(k, default_schedule(k, target), target), name)
    file = FOLDER / f"{name}.c"
    if request.config.getoption("--update-golden"):
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} differs: make golden, and review the change"


def test_no_file_is_left_over() -> None:
    assert {f.stem for f in FOLDER.glob("*.c")} == set(KERNELS)
