"""Damaged and malicious bundles: one clear error, exit code 5, and nothing else happens."""

import hashlib
import re
import shutil
import stat
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundles import build, every_place, mlp, with_buckets, with_lengths
from compiling import ASAN, STRICT, compile_c, link
from lumc.bundle import manifest, planfile
from lumc.bundle.restore import weight_reader
from lumc.bundle.unpack import unpack
from lumc.bundle.weights import Layout
from lumc.errors import Exit, LumcError
from lumc.link import runners
from lumc.runtime.cpu import Bundle
from meshed import alternating, meshed, staged

RANKS = ("mpi", "parcels", "plan_ranks", "ranks", "ranks_who", "rows", "tcp")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("good")
    code, _ = mlp(base)
    build(code, base / "m.lb.zip", base, single=True)
    return build(code, base / "m.lb", base)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lumc-run under the sanitizers."""
    out = tmp_path_factory.mktemp("asan") / "lumc-run"
    return link((*runners.LIBRARY, "main"), (*STRICT, "-O0", *ASAN), out)


def refused(path: Path, runner: Path | None = None) -> str:
    """Both ways to open a bundle refuse it with exit code 5; gives the message."""
    with pytest.raises(LumcError) as e:
        Bundle.open(path)
    assert e.value.exit == Exit.CORRUPT, e.value
    assert e.value.what and "\n" not in e.value.what
    if runner:
        done = subprocess.run([runner, path, "--list"], capture_output=True, text=True)
        assert done.returncode == 5, (done.stdout, done.stderr)
        assert done.stderr.startswith("lumc-run: ") and done.stderr.count("\n") == 1
    return e.value.what


FILES = (
    "manifest.json",
    "graph.lg",
    "plan/cpu-native.bin",
    "weights.safetensors",
    "kernels/cpu-native/kernels.so",
    "kernels/cpu-native/k1_bias.c",
    "kernels/cpu-native/k1_bias.o",
    "kernels/cpu-native/lumc_kernel.h",
    "lib/liblumc.so",
    "include/lumc.h",
    "bin/lumc-run",
)
USED_BY_THE_RUNNER = {n for n in FILES if n.endswith((".json", ".bin", ".safetensors", "els.so"))}


def flip(file: Path, at: float) -> None:
    data = bytearray(file.read_bytes())
    data[min(int(len(data) * at), len(data) - 1)] ^= 1
    file.write_bytes(data)


def to_link(file: Path) -> None:
    elsewhere = file.parent / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def to_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "first byte": lambda f: flip(f, 0),
    "a middle byte": lambda f: flip(f, 0.37),
    "last byte": lambda f: flip(f, 1),
    "truncated": lambda f: f.write_bytes(f.read_bytes()[:-1]),
    "half": lambda f: f.write_bytes(f.read_bytes()[: f.stat().st_size // 2]),
    "empty": lambda f: f.write_bytes(b""),
    "longer": lambda f: f.write_bytes(f.read_bytes() + b"\0"),
    "another file": lambda f: f.write_bytes(b"something else entirely\n" * 100),
    "removed": lambda f: f.unlink(),
    "a link": to_link,
    "a folder": to_folder,
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file(name: str, what: str, good: Path, runner: Path, tmp_path: Path) -> None:
    path = shutil.copytree(good, tmp_path / "m.lb")
    assert set(FILES) <= {p.relative_to(path).as_posix() for p in path.rglob("*")}
    DAMAGE[what](path / name)
    refused(path, runner if name in USED_BY_THE_RUNNER else None)


def test_every_byte_of_the_manifest(good: Path, runner: Path, tmp_path: Path) -> None:
    path = shutil.copytree(good, tmp_path / "m.lb")
    text = (good / "manifest.json").read_bytes()
    rng = np.random.default_rng(0)
    for at in [*range(60), *rng.integers(0, len(text), 60)]:
        damaged = bytearray(text)
        damaged[at] = (damaged[at] + 1 + int(rng.integers(255))) % 256
        (path / "manifest.json").write_bytes(damaged)
        refused(path, runner if at % 10 == 0 else None)


def test_weights_are_checked_before_they_are_restored(good: Path, tmp_path: Path) -> None:
    path = shutil.copytree(good, tmp_path / "m.lb")
    flip(path / "weights.safetensors", 0.9)
    with pytest.raises(LumcError) as e:
        weight_reader(path)
    assert e.value.exit == Exit.CORRUPT


# ---- manifests that agree with themselves


def forge(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest and make its digest right again."""
    body = manifest.read(path)
    change(body)
    rest = {k: v for k, v in body.items() if k not in ("lumc", "schema", "digest")}
    (path / "manifest.json").write_text(manifest.render(rest))


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "/etc/hostname", "a/../../secret", "a//b", "./graph.lg", "", ".", "a b"),
        *("a\\..\\b", "a\nb", "a\0b", "~/x", "x/", "\N{FULLWIDTH FULL STOP}./x"),
    ],
)
def test_unsafe_paths_in_a_manifest(name: str, good: Path, tmp_path: Path) -> None:
    path = shutil.copytree(good, tmp_path / "m.lb")
    (tmp_path / "secret").write_text("secret")
    digest = manifest.sha256(tmp_path / "secret")
    forge(path, lambda body: body["files"].update({name: digest}))
    assert "unsafe file name" in refused(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b["files"].pop("lib/liblumc.so"),
        lambda b: b["files"].pop("weights.safetensors"),
        lambda b: b["files"].pop("kernels/cpu-native/kernels.so"),
        lambda b: b["files"].update({"graph.lg": "A" * 64}),
        lambda b: b["files"].update({"graph.lg": 7}),
        lambda b: b["files"].update({"not/there": "0" * 64}),
        lambda b: b.update(files=[]),
        lambda b: b.update(files=None),
        lambda b: b.pop("files"),
    ],
)
def test_forged_lists_of_files(
    change: Callable[[dict[str, Any]], Any], good: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(good, tmp_path / "m.lb")
    forge(path, change)
    refused(path)


def test_a_manifest_without_a_plan(good: Path, tmp_path: Path) -> None:
    path = shutil.copytree(good, tmp_path / "m.lb")
    forge(path, lambda b: b["files"].pop("plan/cpu-native.bin"))
    with pytest.raises(LumcError, match="no plan for cpu") as e:
        Bundle.open(path)
    assert e.value.exit == Exit.TOOLCHAIN


def test_a_manifest_that_is_not_json(good: Path, tmp_path: Path) -> None:
    path = shutil.copytree(good, tmp_path / "m.lb")
    for rest in ("", "]", '"files":{}', '"files":{},"files":3}', "[" * 100_000, '"a":NaN}', "\xff"):
        data = rest.encode("latin-1")
        digest = hashlib.sha256(data).hexdigest()
        (path / "manifest.json").write_bytes(f'{manifest.HEAD}{digest}",\n'.encode() + data)
        refused(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b["packings"][0].update(weight="nothing"),
        lambda b: b["packings"][0].update(index=[5, 6]),
        lambda b: b["packings"][0].update(axes=[["l", 1 << 40]]),
        lambda b: b["packings"][0].update(dtype="f8"),
        lambda b: b["packings"][0].update(panel=[9, 9]),
        lambda b: b["packings"][0].update(name="b1"),
        lambda b: b["packings"][0].update(terms=[["load", ["x", "f32"], []]], index=[0, 0]),
        lambda b: b.update(packings={"a": 1}),
        lambda b: b.pop("packings"),
    ],
)
def test_forged_packings(
    change: Callable[[dict[str, Any]], Any], good: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(good, tmp_path / "m.lb")
    code, _ = mlp(tmp_path)
    forge(path, change)
    try:
        read = weight_reader(path)
        for w in code.graph.weights:
            assert read(w).shape == w.shape
    except LumcError as e:
        assert e.exit == Exit.CORRUPT


# ---- plan.bin


def test_forged_targets(good: Path, runner: Path, tmp_path: Path) -> None:
    """A plan for another folder: the runner stays inside the bundle."""
    for target in (b"../../../x", b"cpu-native/", b"cpu-nativf", b""):
        path = shutil.copytree(good, tmp_path / f"{target!r}".replace("/", "_"))
        plan = path / "plan" / "cpu-native.bin"
        data = plan.read_bytes()
        old = struct.pack("<Q", 10) + b"cpu-native".ljust(16, b"\0")
        size = (len(target) + 8) // 8 * 8
        assert old in data
        plan.write_bytes(
            data.replace(old, struct.pack("<Q", len(target)) + target.ljust(size, b"\0"))
        )
        forge(
            path, lambda b, p=plan: b["files"].update({"plan/cpu-native.bin": manifest.sha256(p)})
        )
        assert "is for the target" in refused(path, runner)


FUZZ = r"""
#include "ranks.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static uint64_t state = 88172645463325252u;
static uint64_t next(void) {
  state ^= state << 13, state ^= state >> 7;
  return state ^= state << 17;
}
static uint64_t touch(const lumc_tensor *t, size_t n) { /* everything that a plan points to */
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) {
    sum += strlen(t[i].name) + t[i].bytes + dtype_bytes(t[i].dtype);
    unsigned __int128 bytes = dtype_bytes(t[i].dtype);
    for (int k = 0; k < t[i].rank; ++k) bytes *= (uint64_t)t[i].shape[k];
    if (bytes != t[i].bytes || bytes > 1ull << 46) abort();
  }
  return sum;
}
static uint64_t walk(const struct plan *p) {
  uint64_t sum = strlen(p->target) + strlen(p->arch) + touch(p->states, p->n_states);
  for (size_t i = 0; i < p->n_features; ++i) sum += strlen(p->features[i]);
  for (size_t i = 0; i < p->n_kernels; ++i) sum += strlen(p->kernels[i].symbol);
  for (size_t i = 0; i < p->n_segments; ++i) {
    const struct segment *s = &p->segments[i];
    uint64_t last = 0;
    for (size_t a = 0; a < p->n_axes; ++a) last += s->steps[a] * (p->axes[a].ranks - 1);
    if (last >= s->parts || s->to > p->weights_bytes) abort();
    if (s->bytes > p->weights_bytes - s->to) abort();
  }
  for (size_t i = 0; p->n_axes && i < p->n_states; ++i) {
    int64_t shape[MAX_RANK];
    lumc_tensor t;
    mesh_whole(p, i, &t, shape);
    sum += t.bytes;
  }
  for (size_t i = 0; i < p->n_entries; ++i) {
    const struct entry *e = &p->entries[i];
    sum += strlen(e->name) + touch(e->inputs, e->n_inputs) + touch(e->outputs, e->n_outputs);
    for (size_t k = 0; k < p->n_dims; ++k) {
      const struct told *t = &e->told[k];
      if (t->how == LUMC_BY_SHAPE) sum += (uint64_t)e->inputs[t->input].shape[t->axis];
    }
  }
  for (size_t i = 0; i < p->n_lists; ++i) {
    const struct list *l = &p->lists[i];
    const struct entry *e = l->entry;
    for (size_t k = 0; k < p->n_dims; ++k) sum += strlen(p->dims[k].name) + l->bounds[k];
    sum += touch(l->inputs, e->n_inputs) + touch(l->outputs, e->n_outputs);
    for (size_t k = 0; k < e->n_inputs; ++k)
      if (l->inputs[k].bytes > e->inputs[k].bytes) abort();
    for (size_t k = 0; k < e->n_outputs; ++k)
      if (l->outputs[k].bytes > e->outputs[k].bytes) abort();
    for (size_t k = 0; k < l->n_launches; ++k) {
      uint64_t which = l->launches[k].kernel;
      if (which < p->n_kernels) sum += strlen(p->kernels[which].symbol);
      else if (p->exchanges[which - p->n_kernels].axis >= p->n_axes) abort();
      for (size_t a = 0; a < l->launches[k].n_args; ++a) {
        const struct arg *arg = &l->launches[k].args[a];
        uint64_t size = arg->place == ARENA ? e->arena : p->weights_bytes;
        if (arg->place == ARENA || arg->place == WEIGHT)
          if (arg->offset % 64 || arg->offset > size || arg->bytes > size - arg->offset) abort();
        if (arg->place == INPUT || arg->place == OUTPUT) {
          const lumc_tensor *own = arg->place == INPUT ? l->inputs : l->outputs;
          if (arg->offset > own[arg->index].bytes) abort();
          if (arg->bytes > own[arg->index].bytes - arg->offset) abort();
        }
        if (arg->place == STATE && arg->bytes > p->states[arg->index].bytes) abort();
        if (arg->place == DIM && arg->index >= p->n_dims) abort();
        if (arg->place >= PLACES) abort();
      }
    }
  }
  return sum;
}
static uint64_t ends(struct plan *p) { /* every dim at its ends and between: nothing overflows */
  struct live v = {0};
  uint64_t sum = 0;
  if (live_open(&v, p)) return live_close(&v), 1;
  for (size_t d = 0; d < p->n_dims; ++d)
    for (int i = 0; i < 3; ++i) {
      const lumc_dim *dim = &p->dims[d];
      int64_t middle = dim->lo + (dim->hi - dim->lo) / 2;
      live_set(&v, d, i == 0 ? dim->lo : i == 1 ? middle - middle % dim->multiple : dim->value);
      for (size_t e = 0; e < p->n_entries; ++e) {
        const struct entry *entry = &p->entries[e];
        const lumc_tensor *t = v.tensors[e];
        if (live_list(&v, entry) >= entry->first_list + entry->n_lists) abort();
        const struct list *l = &p->lists[live_list(&v, entry)];
        for (size_t k = 0; k < entry->n_inputs; ++k, ++t)
          for (int r = 0; r < t->rank; ++r)
            if (t->shape[r] > l->inputs[k].shape[r]) abort();
        for (size_t k = 0; k < entry->n_outputs; ++k, ++t)
          for (int r = 0; r < t->rank; ++r)
            if (t->shape[r] > l->outputs[k].shape[r]) abort();
      }
      sum += 1;
    }
  live_close(&v);
  return sum + 1;
}
int main(int argc, char **argv) {
  static uint8_t file[1 << 16];
  FILE *f = argc > 2 ? fopen(argv[1], "rb") : NULL;
  size_t size = f ? fread(file, 1, sizeof file, f) : 0;
  long good = 0, n = argc > 2 ? atol(argv[2]) : 0;
  static const uint64_t odd[] = {0, 1, 2, 7, 63, 64, 255, 1ull << 31, 1ull << 32, 1ull << 45,
                                 1ull << 46, 1ull << 61, 1ull << 63, ~0ull, ~0ull - 7, ~0ull / 8};
  for (long i = 0; i <= n; ++i) {
    size_t length = i && next() % 4 == 0 ? next() % (size + 1) : size;
    uint8_t *data = malloc(length + 1);
    memcpy(data, file, length);
    for (uint64_t k = i ? 1 + next() % 3 : 0; k && length >= 8; --k) {
      uint64_t word = odd[next() % 16];
      if (next() % 2) data[next() % length] ^= (uint8_t)(1 << next() % 8);
      else memcpy(data + next() % (length / 8) * 8, &word, 8);
    }
    struct plan p;
    int code = plan_read(&p, data, length);
    if (code ? code != LUMC_CORRUPT || !*lumc_error() : walk(&p) == 0 || !ends(&p)) return 2;
    if (i == 0 && code) return 3;
    good += !code;
    plan_free(&p);
  }
  printf("%ld of %ld were still plans\n", good, n);
  return f ? fclose(f) : 1;
}
"""


def states_bundle(folder: Path) -> Path:
    """A plan that uses every place, with several entries' worth of records."""
    return build(every_place(), folder / "s.lb", folder)


def test_ten_thousand_mutated_plans(good: Path, tmp_path: Path) -> None:
    parts = ("errors", "files", "live", "memory", "plan", "sha256", *RANKS)
    out = compile_c(FUZZ, tmp_path / "fuzz", parts, ASAN)
    (tmp_path / "mesh.bin").write_bytes(meshed())
    (tmp_path / "stages.bin").write_bytes(staged())
    (tmp_path / "turns.bin").write_bytes(alternating())
    plans = [good / "plan" / "cpu-native.bin", states_bundle(tmp_path) / "plan/cpu-generic.bin"]
    for i, code in enumerate((with_lengths(), with_buckets())):
        place = planfile.loading(code, Layout({}, 8, 64), {})
        plans.append(tmp_path / f"dims{i}.bin")
        plans[-1].write_bytes(planfile.encode(code, "cpu-generic", "generic", (), place))
    plans += [tmp_path / name for name in ("mesh.bin", "stages.bin", "turns.bin")]
    for plan in plans:
        done = subprocess.run([out, plan, "10000"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        survivors = int(re.match(r"(\d+) of", done.stdout)[1])  # type: ignore[index]
        assert 0 < survivors < 8000  # both outcomes were tried


def test_mutated_plans_with_right_hashes(good: Path, runner: Path, tmp_path: Path) -> None:
    """The whole runner opens bundles that agree with themselves; it never crashes."""
    path = shutil.copytree(good, tmp_path / "m.lb")
    plan = path / "plan" / "cpu-native.bin"
    data, rng = plan.read_bytes(), np.random.default_rng(1)
    for _ in range(60):
        words = np.frombuffer(data, np.uint64).copy()
        at = rng.integers(1, len(words))
        words[at] = rng.choice(np.array([0, 1, 65, 1 << 33, 1 << 45, 1 << 63], np.uint64))
        plan.write_bytes(words.tobytes())
        forge(path, lambda b: b["files"].update({"plan/cpu-native.bin": manifest.sha256(plan)}))
        done = subprocess.run([runner, path, "--list"], capture_output=True, text=True)
        assert done.returncode in (0, 1, 5, 7), done.stderr
        assert done.stderr.count("\n") == (done.returncode != 0), done.stderr


def test_symbols_that_are_not_kernels(good: Path, runner: Path, tmp_path: Path) -> None:
    path = shutil.copytree(good, tmp_path / "m.lb")
    plan = path / "plan" / "cpu-native.bin"
    plan.write_bytes(plan.read_bytes().replace(b"k1_bias", b"k1_bxxx"))
    forge(path, lambda b: b["files"].update({"plan/cpu-native.bin": manifest.sha256(plan)}))
    assert "no kernel 'k1_bxxx'" in refused(path, runner)


# ---- one file


def rezip(source: Path, out: Path, change: Callable[[zipfile.ZipInfo, bytes], Any]) -> Path:
    """Copy a zip; ``change`` gives the members that stand for one, as (info, data)."""
    with zipfile.ZipFile(source) as z, zipfile.ZipFile(out, "w") as new:
        for info in z.infolist():
            plain = zipfile.ZipInfo(info.filename)
            for member, data in change(plain, z.read(info)):
                new.writestr(member, data)
    return out


def named(name: str) -> Callable[[zipfile.ZipInfo, bytes], Any]:
    def change(info: zipfile.ZipInfo, data: bytes) -> Any:
        if info.filename == "graph.lg":
            info = zipfile.ZipInfo(name)
        return [(info, data)]

    return change


def extra(name: str, mode: int = 0) -> Callable[[zipfile.ZipInfo, bytes], Any]:
    def change(info: zipfile.ZipInfo, data: bytes) -> Any:
        if info.filename != "graph.lg":
            return [(info, data)]
        new = zipfile.ZipInfo(name)
        new.external_attr = mode << 16
        return [(info, data), (new, b"/etc/passwd")]

    return change


def packed(info: zipfile.ZipInfo, data: bytes) -> Any:
    info.compress_type = zipfile.ZIP_DEFLATED
    return [(info, data)]


def stretched(info: zipfile.ZipInfo, data: bytes) -> Any:
    """Marked as compressed, but larger than what was: only the mark tells."""
    info.compress_type, info._compresslevel = zipfile.ZIP_DEFLATED, 0  # type: ignore[attr-defined]
    return [(info, data)]


def as_link(info: zipfile.ZipInfo, data: bytes) -> Any:
    if info.filename == "graph.lg":
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        data = b"/etc/passwd"
    return [(info, data)]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "change",
    [
        named("../graph.lg"),
        named("/tmp/graph.lg"),
        named("a/../../graph.lg"),
        extra("../evil"),
        extra("evil"),
        extra("graph.lg"),
        extra("evil", stat.S_IFLNK | 0o777),
        packed,
        stretched,
        as_link,
        lambda info, data: [(info, data)] if info.filename != "graph.lg" else [],
        lambda info, data: [(info, data)] if info.filename != "manifest.json" else [],
        lambda info, data: [(info, data + b"!" * (info.filename == "graph.lg"))],
    ],
)
def test_malicious_zips(change: Any, good: Path, tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "cache"
    path = rezip(good.parent / "m.lb.zip", tmp_path / "m.lb.zip", change)
    with pytest.raises(LumcError) as e:
        Bundle.open(path, cache)
    assert e.value.exit == Exit.CORRUPT
    written = [p for p in tmp_path.rglob("*") if p.is_file() or p.is_symlink()]
    assert all(p == path or cache in p.parents for p in written)
    assert not any(p.is_symlink() for p in written)


def test_damaged_zips(good: Path, tmp_path: Path) -> None:
    """Random damage: the bundle opens unharmed (padding was hit) or is refused."""
    data = (good.parent / "m.lb.zip").read_bytes()
    rng, x = np.random.default_rng(0), np.zeros((5, 11), np.float32)
    expected = Bundle.open(good).run({"x": x})["y"]
    path = tmp_path / "m.lb.zip"
    refusals = 0
    for i in range(60):
        damaged = bytearray(data)
        near_the_end = rng.integers(len(data) - 1500, len(data))
        damaged[near_the_end if i % 2 else rng.integers(len(data))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged[: len(data) if i % 5 else rng.integers(len(data))])
        try:
            with Bundle.open(path) as b:
                np.testing.assert_array_equal(b.run({"x": x})["y"], expected)
        except LumcError as e:
            assert e.exit == Exit.CORRUPT
            refusals += 1
    assert refusals > 20


def test_a_zip_whose_directory_lies_before_its_start(good: Path, tmp_path: Path) -> None:
    """The seek is refused by the system, not by zipfile: exit code 5, not that of a full disk."""
    data = bytearray((good.parent / "m.lb.zip").read_bytes())
    end = data.rindex(b"PK\5\6")
    data[end + 16 : end + 20] = b"\xff\xff\xff\x7f"
    (tmp_path / "m.lb.zip").write_bytes(data)
    refused(tmp_path / "m.lb.zip")


def test_a_cache_that_was_tampered_with(good: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = unpack(good.parent / "m.lb.zip", cache)
    flip(folder / "lib" / "liblumc.so", 0.5)
    with pytest.raises(LumcError) as e:
        Bundle.open(good.parent / "m.lb.zip", cache)
    assert e.value.exit == Exit.CORRUPT
