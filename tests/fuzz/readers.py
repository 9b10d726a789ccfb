"""Files with faults, read in this process: each is refused in one clear error, or accepted, within
two seconds and 256 MB. Digests are made right again, so that what is behind them is reached."""

from __future__ import annotations

import io
import json
import random
import resource
import traceback
import wave
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

import gguf_files
import pt2_files
from bundles import build, mlp, with_buckets
from checkpoints import BERT, bert_shapes, random_weights, write_folder
from forging import GRAPH
from fuzz import messages
from fuzz.damage import damaged, spoiled, text_damaged
from limiting import limited
from lumc.artifacts import bodies, files
from lumc.bundle import manifest, planfile, reader, restore
from lumc.bundle.unpack import unpack
from lumc.bundle.weights import Layout
from lumc.codegen.generate import generate
from lumc.command.arrays import read_arrays
from lumc.disk import artifact
from lumc.disk.weights import read_header, read_tensor
from lumc.errors import Exit, LumcError
from lumc.frontend.aten.pt2 import import_pt2
from lumc.frontend.models.gguf import import_gguf
from lumc.frontend.models.huggingface import import_folder
from lumc.frontend.onnx import import_onnx
from lumc.graph.graph import Node
from lumc.graph.ops import DType
from lumc.graph.tensor import Tensor
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.kernel.machines import resolve_target
from lumc.profile.choose import estimate
from lumc.profile.records import NAME, Records, Setting, compact, read_lines
from lumc.schedule.first import first_schedules
from lumc.search import search
from lumc.search.saturate import Limits
from lumc.speech.sound import read_wav
from lumc.tokenizer.encoding import encoding
from lumc.tokenizer.sources import of_source
from lumc.tokenizer.tokenizer import dump, parse

SECONDS, MEGABYTES = 2.0, 256
REFUSALS = (Exit.USAGE, Exit.UNSUPPORTED, Exit.CORRUPT, Exit.BUDGET, Exit.TOOLCHAIN)
TARGETS = ("cpu:x86-64-v3", "cuda:sm_90", "metal:apple8")
WHOLE_TARGETS = ("cpu:x86-64-v4", "cuda:sm_90")  # with f64
WANTED = (Tensor("x", DType.F32, (4, 3)), Tensor("n", DType.I64, (2,)))
INTEGERS = """lumc graph 1
entry a
input x i32[7, 5]
input m bool[7]
input z f16[7, 5]
t0 i32[i:7, j:5] = mul m[i], x[6 - i, j]
t1 i32[i:7] = max j:5 of t0[i, j]
t2 f16[i:7, j:5] = exp2 z[i, j]
t3 f16[i:7] = sum j:5 of t2[i, j]
output y = t1
output s = t3
entry b
input q f64[4, 4]
t4 f64[i:4, j:4] = mod q[j, i], 3.0
output y = t4
"""


class Slow(BaseException):
    """No error that a reader could take for one of its own."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: how a faulty one is made of a draw, and what reads it."""

    make: Callable[[random.Random], bytes]
    read: Callable[[bytes], object]


def put(path: Path, data: bytes) -> None:
    """In the place of what is there: a file that is cut to nothing first has to reach the disk."""
    with path.open("r+b" if path.exists() else "wb") as f:
        f.write(data)
        f.truncate()


# ---- envelopes


@dataclass(frozen=True)
class Envelope:
    """Artifacts of one kind, as texts."""

    kind: str
    texts: Sequence[str]

    def make(self, draw: random.Random) -> bytes:
        text = draw.choice(self.texts)
        if draw.random() < 0.2:
            text = text_damaged(text, draw)
            try:
                data = json.loads(text)
                head = {k: data.pop(k) for k in ("lumc", "schema", "input", "digest")}
                return text.replace(str(head["digest"]), artifact.digest(data)).encode()
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
                return text.encode("utf-8", "surrogatepass")
        data = json.loads(text)
        head = {k: data.pop(k) for k in ("lumc", "schema", "input", "digest")}
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            if draw.random() < 0.1:
                data["graph"] = text_damaged(str(data.get("graph", "")), draw)
            else:
                data = spoiled(data, draw)
        if not isinstance(data, dict):
            return json.dumps(data).encode()
        try:
            return artifact.dump(self.kind, head["input"], data).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError, AttributeError):  # nothing that dump could write
            return json.dumps({**head, **data}).encode()


def read_space(data: bytes) -> object:
    space, _ = files.space_from_text(data.decode(), Path(), "m.ls")
    return estimate(space)


def read_plan(data: bytes) -> object:
    plan, _ = files.plan_from_text(data.decode(), Path(), "m.lp")
    return generate(plan)


def read_code(data: bytes) -> object:
    return files.code_from_text(data.decode(), Path(), "m.lk")


def envelopes() -> Iterator[tuple[str, Kind]]:
    texts: dict[str, list[str]] = {"space": [], "plan": [], "kernels": []}
    for text, targets in ((GRAPH, TARGETS), (INTEGERS, WHOLE_TARGETS)):
        for name in targets:
            graph = parse_graph(text)
            space = search(graph, resolve_target(name), Limits(nodes=500), inside=True)
            plan = estimate(space)
            made = (
                ("space", space, bodies.space_to_json),
                ("plan", plan, bodies.plan_to_json),
                ("kernels", generate(plan), bodies.code_to_json),
            )
            for kind, value, to_json in made:
                body = files.with_graph(graph, to_json(value), "-")  # type: ignore[operator]
                texts[kind].append(artifact.dump(kind, "0" * 64, body))
    read = {"space": read_space, "plan": read_plan, "kernels": read_code}
    for kind, end in (("space", "ls"), ("plan", "lp"), ("kernels", "lk")):
        yield end, Kind(Envelope(kind, texts[kind]).make, read[kind])


# ---- graphs


def read_graph(data: bytes) -> object:
    graph = parse_graph(data.decode("utf-8", "surrogatepass"), "m.lg")
    verify_graph(graph)
    text = print_graph(graph)
    if print_graph(parse_graph(text)) != text:
        raise AssertionError("not what was printed")
    return graph


def graphs() -> Kind:
    texts = [GRAPH, INTEGERS, *(p.read_text() for p in FOUND.glob("*.lg"))]

    def make(draw: random.Random) -> bytes:
        text = draw.choice(texts)
        for _ in range(draw.choice((1, 1, 2, 4))):
            text = text_damaged(text, draw)
        return text.encode("utf-8", "surrogatepass")

    return Kind(make, read_graph)


FOUND = Path(__file__).parent / "found"


# ---- bundles


def bundles(folder: Path) -> Iterator[tuple[str, Kind]]:
    bundle = build(mlp(folder)[0], folder / "m.lb", folder)
    zipped = build(mlp(folder)[0], folder / "m.lb.zip", folder, single=True)
    text = (bundle / manifest.NAME).read_bytes()
    (plan,) = (bundle / "plan").glob("*.bin")
    head = ("lumc", "schema", "digest")
    body = {k: v for k, v in manifest.read(bundle).items() if k not in head}

    def make(draw: random.Random) -> bytes:
        if draw.random() < 0.3:
            changed = damaged(text, draw)
            at = len(manifest.HEAD)
            rest = changed[at + 67 :]
            return (
                changed[:at] + manifest.hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest
            )
        changed_body = spoiled(body, draw)
        try:
            return manifest.render(changed_body).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError, AttributeError):
            return text[: draw.randrange(len(text))]

    def read(data: bytes) -> object:
        put(bundle / manifest.NAME, data)
        said = manifest.read(bundle)
        graph = restore.graph_of(bundle)
        reads = restore.weight_reader(bundle)
        for w in graph.weights:
            reads(w)
        from lumc.runtime.opened import plans_of

        return plans_of(bundle, said["files"], "cpu")

    yield "manifest", Kind(make, read)
    place = planfile.loading(with_buckets(), Layout({}, 8, 64), {})
    lengths = planfile.encode(with_buckets(), "cpu-generic", "generic", (), place)
    words = (plan.read_bytes(), lengths)
    yield "plan", Kind(lambda draw: damaged(draw.choice(words), draw), reader.decode)
    packed, cache = zipped.read_bytes(), folder / "unpacked"

    def read_zip(data: bytes) -> object:
        put(folder / "z.lb.zip", data)
        return unpack(folder / "z.lb.zip", cache)

    yield "zip", Kind(partial(damaged, packed, near_the_end=0.7), read_zip)


# ---- weights and arrays


def safetensors(folder: Path) -> Kind:
    values = {
        "a": np.arange(12, dtype="f4").reshape(3, 4),
        "b": np.arange(6, dtype="i8"),
        "c": np.array([True, False]),
        "d": np.zeros((0, 3), "f2"),
    }
    whole, path = save(values, {"format": "pt"}), folder / "w.safetensors"
    size = int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    nodes = [
        Node(k, "weight", DType(kind), ("d0", "d1")[: v.ndim], v.shape, key=k)
        for (k, v), kind in zip(values.items(), ("f32", "i64", "bool", "f16"), strict=True)
    ]

    def make(draw: random.Random) -> bytes:
        if draw.random() < 0.4:
            return damaged(whole, draw)
        text = json.dumps(spoiled(header, draw)).encode()
        n = len(text) if draw.random() < 0.95 else draw.choice((0, 1, 1 << 20, 1 << 40, 1 << 63))
        return n.to_bytes(8, "little") + text + data

    def read(data: bytes) -> object:
        put(path, data)
        found = read_header(path)
        for node in nodes:
            if node.key in found:
                np.asarray(read_tensor(node, path)).sum()
        return found

    return Kind(make, read)


def arrays(folder: Path) -> Iterator[tuple[str, Kind]]:
    x, n = np.arange(12, dtype="f4").reshape(4, 3), np.arange(2)
    whole = [npy(x, (1, 0)), npy(np.asfortranarray(x), (2, 0)), npy(x.astype(">f4"), (1, 0))]

    def make(draw: random.Random) -> bytes:
        data = draw.choice(whole)
        if draw.random() < 0.5:
            return damaged(data, draw)
        start = data.index(b"{")
        text = text_damaged(data[start:-48].decode("latin1"), draw).encode("utf-8", "replace")
        return data[:8] + (len(text) % 65536).to_bytes(2, "little") + text + data[-48:]

    def read(end: str, data: bytes) -> object:
        path = folder / f"x.{end}"
        put(path, data)
        return read_arrays((f"x={path}" if end == "npy" else str(path),), WANTED, "input")

    yield "npy", Kind(make, partial(read, "npy"))

    def make_npz(draw: random.Random) -> bytes:
        out = io.BytesIO()
        how = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        with zipfile.ZipFile(out, "w", how) as z:
            z.writestr("x.npy", make(draw) if draw.random() < 0.6 else whole[0])
            z.writestr(draw.choice(("n.npy", "n.npy", "n", "../n.npy", "q.npy")), npy(n, (1, 0)))
        return damaged(out.getvalue(), draw) if draw.random() < 0.5 else out.getvalue()

    yield "npz", Kind(make_npz, partial(read, "npz"))


def npy(value: np.ndarray[Any, Any], version: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, value, version, allow_pickle=False)
    return out.getvalue()


def ggufs(folder: Path) -> Kind:
    """Whole models, so that what the metadata says is believed as far as it may be."""
    d, inner, words = 32, 32, 8
    fields = {
        "general.architecture": "llama",
        "general.alignment": 32,
        **{f"llama.{k}": 1 for k in ("block_count", "attention.head_count")},
        **{f"llama.{k}": d for k in ("embedding_length", "feed_forward_length")},
        "llama.context_length": 16,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": gguf_files.Array(8, [f"w{i}" for i in range(words)]),
        "tokenizer.ggml.scores": gguf_files.Array(6, [0.5] * words),
    }
    shapes = {"ffn_gate": (inner, d), "ffn_up": (inner, d), "ffn_down": (d, inner)}
    shapes |= {f"attn_{n}": (d, d) for n in ("q", "k", "v", "output")}
    tensors = {
        "token_embd.weight": gguf_files.tensor(np.ones((words, d))),
        "output_norm.weight": gguf_files.tensor(np.ones(d)),
        **{f"blk.0.{n}.weight": gguf_files.tensor(np.ones(d)) for n in ("attn_norm", "ffn_norm")},
    }
    for name, shape in shapes.items():
        raw = bytes(range(256)) * (shape[0] * 20 // 256) + bytes(shape[0] * 20 % 256)
        tensors[f"blk.0.{name}.weight"] = gguf_files.Tensor(shape, raw, gguf_files.Q4_1)
    whole, path = gguf_files.gguf(fields, tensors), folder / "m.gguf"
    path.write_bytes(whole)
    head = min(t.start for t in read_header(path).values())

    def make(draw: random.Random) -> bytes:
        changed = damaged(whole[:head], draw)
        return changed + whole[head:] if draw.random() < 0.8 else damaged(whole, draw)

    def read(data: bytes) -> object:
        put(path, data)
        model = import_gguf(path)
        return [model.read_weight(w).tobytes() for w in model.graph().weights]

    return Kind(make, read)


def vocabularies(folder: Path) -> Kind:
    """Both models of tokens, with numbers that are a little wrong."""
    words = [
        "<s>",
        "</s>",
        "▁",
        "a",
        "b",
        "ab",
        "▁ab",
        "Ġ",
        "Ġab",
        *(f"<0x{i:02X}>" for i in range(9)),
    ]
    kinds = [3, 3, *[1] * 7, *[6] * 9]
    shared = {"tokens": (8, words), "token_type": (5, kinds), "bos_token_id": 0, "eos_token_id": 1}
    good: list[dict[str, Any]] = [
        {"model": "gpt2", "pre": "qwen2", "merges": (8, ["a b", "Ġ ab"]), **shared},
        {"model": "llama", "scores": (6, [float(-i) for i in range(len(words))]), **shared},
    ]
    path = folder / "v.gguf"

    def stored(value: Any) -> Any:
        return gguf_files.Array(*value) if isinstance(value, tuple) else value

    def make(draw: random.Random) -> bytes:
        fields = dict(draw.choice(good))
        key = draw.choice(sorted(fields))
        value = fields[key]
        if isinstance(value, tuple):
            kind, items = value
            items = list(items)
            for _ in range(draw.choice((1, 1, 3))):
                at, other = draw.randrange(len(items)), draw.choice(items)
                match draw.randrange(4):
                    case 0:
                        items[at] = other
                    case 1:
                        items[at] = other * draw.choice((2, 0, 40)) if kind == 8 else -other
                    case 2:
                        items[at] = items[at][1:] + " x" if kind == 8 else other * 7
                    case 3 if len(items) > 1:
                        del items[at]
            fields[key] = kind, items
        else:
            fields[key] = draw.choice((0, 1, 5, 1 << 31, "", "llama", "gpt2", "smollm", True, 0.5))
        if draw.random() < 0.2:
            del fields[draw.choice(sorted(fields))]
        named = {f"tokenizer.ggml.{k}": stored(v) for k, v in fields.items()}
        whole = gguf_files.gguf(named)
        return damaged(whole, draw) if draw.random() < 0.3 else whole

    def read(data: bytes) -> object:
        put(path, data)
        known = of_source(str(path))
        text = dump(known)
        assert dump(parse(text, "")) == text
        made = encoding(known, str(path))
        ids = [made.encode(text, special=True) for text in ("ab a b", "", "<s>é\n", " ab\x00")]
        return [made.decode(i) for i in ids]

    return Kind(make, read)


def tokenizers(folder: Path) -> Kind:
    """Those of Hugging Face folders, and what lumc makes of one."""
    words = {w: i for i, w in enumerate(("<s>", "</s>", "▁", "a", "b", "ab", "▁ab", "c", "d"))}
    pattern = {"Regex": " ?[a-z]+|[0-9]{1,3}"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    normal = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    model = {"type": "BPE", "vocab": words, "merges": ["a b", "▁ ab"], "unk_token": "<s>"}
    marks = [{"id": i, "content": w, "special": True} for i, w in enumerate(("<s>", "</s>"))]
    parts = {"normalizer": normal, "pre_tokenizer": split, "decoder": {"type": "Fuse"}}
    good: dict[str, Any] = {
        "tokenizer.json": {"version": "1.0", "added_tokens": marks, "model": model, **parts},
        "tokenizer_config.json": {"bos_token": "<s>", "chat_template": "{{ messages }}"},
        "generation_config.json": {"eos_token_id": [1, 8], "suppress_tokens": [3]},
    }
    source = folder / "t"
    source.mkdir(exist_ok=True)
    for name, value in good.items():
        put(source / name, json.dumps(value).encode())
    own = "model.tokenizer.json"
    good[own] = json.loads(dump(of_source(str(source))))

    def make(draw: random.Random) -> bytes:
        name = draw.choice(("tokenizer.json", own, *good))
        value = spoiled(good[name], draw)
        try:
            text = json.dumps(value).encode("utf-8", "surrogatepass")
        except ValueError:  # a part of itself
            text = b"{}"
        text = damaged(text, draw) if draw.random() < 0.2 else text
        return name.encode() + b"\n" + text

    def read(data: bytes) -> object:
        name, _, text = data.partition(b"\n")
        path = (folder if name.decode() == own else source) / name.decode()
        put(path, text)
        try:
            known = of_source(str(path if name.decode() == own else source))
        finally:
            put(path, json.dumps(good[name.decode()]).encode())
        said = dump(known)
        assert dump(parse(said, "")) == said
        made = encoding(known, "t")
        ids = [made.encode(text, special=True) for text in ("ab a b", "", "<s>é\n", " ab\x00")]
        return [made.decode(i) for i in ids]

    return Kind(make, read)


def sounds(folder: Path) -> Kind:
    path, wholes = folder / "s.wav", list[bytes]()
    for channels, nbytes, rate in ((1, 2, 16_000), (2, 1, 8_000), (1, 3, 44_100), (3, 4, 22_050)):
        with wave.open(str(path), "wb") as f:
            f.setnchannels(channels)
            f.setsampwidth(nbytes)
            f.setframerate(rate)
            f.writeframes(bytes(range(240)) * channels)
        wholes.append(path.read_bytes())

    def make(draw: random.Random) -> bytes:
        return damaged(draw.choice(wholes), draw)

    def read(data: bytes) -> object:
        put(path, data)
        samples = read_wav(path)
        assert samples.ndim == 1 and samples.dtype == np.float32
        return samples

    return Kind(make, read)


# ---- records


def records(folder: Path) -> Kind:
    setting = Setting("cpu-1", "gcc-1", 1)
    kernels = parse_graph(GRAPH)
    plan = estimate(search(kernels, resolve_target(TARGETS[0]), Limits(nodes=300), inside=True))
    lines = []
    for k in plan.kernels.values():
        base = {"v": 2, "kernel": k.key, "cold": False, **setting.fields()}
        for schedule in [*first_schedules(k.kernel, plan.target)][:2]:
            said = {"schedule": schedule.to_json(), "us": 3.5, "beside": 3.25, "samples": 9}
            lines += [{**base, "kind": "trial", **said, "noise": 0.01}]
        wrong = {"schedule": k.schedule.to_json(), "reason": "wrong", "remark": "by 3"}
        lines += [{**base, "kind": "trial", **wrong}, {**base, "kind": "turn", "us": 4.5}]
        end = {"schedule": k.schedule.to_json(), "us": 3.5, "stop": "converged", "trials": 5}
        lines += [{**base, "kind": "choice", **end, "budget_s": 3.0, "limit": 0}]
    speeds = {"gflops": 100.0, "cached": 200.0, "memory": 10.0}
    lines.append(
        {"v": 2, "kind": "peak", "kernel": "", "cold": False, **setting.fields(), **speeds}
    )

    def make(draw: random.Random) -> bytes:
        some = [draw.choice(lines) for _ in range(6)]
        some[draw.randrange(6)] = spoiled(draw.choice(lines), draw)
        data = "".join(json.dumps(x) + "\n" for x in some).encode("utf-8", "surrogatepass")
        return damaged(data, draw) if draw.random() < 0.3 else data

    def read(data: bytes) -> object:
        put(folder / NAME, data)
        known = Records(folder, setting)
        for each in known.trials.values():
            sorted(each.values())
        known.close()
        return [json.dumps(line) for line in compact(read_lines(folder / NAME))]

    return Kind(make, read)


# ---- models of others


def configs(folder: Path) -> Kind:
    small = {**BERT, "num_hidden_layers": 1}
    model = write_folder(folder / "hf", small, random_weights(bert_shapes(small)))
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.Normalize"},
    ]
    pooling = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True}
    (model / "1_Pooling").mkdir(exist_ok=True)
    good: dict[str, Any] = {
        "config.json": small,
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
    }
    for name, value in good.items():
        (model / name).write_text(json.dumps(value))

    def make(draw: random.Random) -> bytes:
        name = draw.choice(("config.json", "config.json", "config.json", *good))
        value = spoiled(good[name], draw)
        text = json.dumps(value).encode("utf-8", "surrogatepass")
        text = damaged(text, draw) if draw.random() < 0.2 else text
        return name.encode() + b"\n" + text

    def read(data: bytes) -> object:
        name, _, text = data.partition(b"\n")
        path = model / name.decode()
        put(path, text)
        try:
            return import_folder(model).graph()
        finally:
            put(path, json.dumps(good[name.decode()]).encode())

    return Kind(make, read)


def onnx_kinds(folder: Path) -> Iterator[tuple[str, Kind]]:
    models = messages.models()
    path = folder / "m.onnx"

    def read(data: bytes) -> object:
        put(path, data)
        return import_onnx(path).graph()

    wholes = [m.SerializeToString() for m in models]
    yield "onnx", Kind(lambda draw: damaged(draw.choice(wholes), draw), read)
    yield "messages", Kind(partial(messages.changed, models), read)


def archives(folder: Path) -> Kind:
    """Of torch.export: with another program, with other tensors, or with damaged bytes."""
    path, (program, tensors) = folder / "m.pt2", pt2_files.net()
    whole = pt2_files.archive(program, tensors)

    def make(draw: random.Random) -> bytes:
        if draw.random() < 0.3:
            return damaged(whole, draw, near_the_end=0.5)
        said, known = program, dict(tensors)
        if draw.random() < 0.7:
            said = spoiled(said, draw)
        else:
            name = draw.choice(sorted(known))
            meta, data = known[name]
            known[name] = spoiled(meta, draw), data
        try:
            text = json.dumps(said).encode("utf-8", "surrogatepass")
            return pt2_files.archive(text, known)
        except (TypeError, ValueError, KeyError, AttributeError):  # nothing that JSON could say
            return pt2_files.archive(json.dumps(program).encode(), tensors)

    def read(data: bytes) -> object:
        put(path, data)
        model = import_pt2(path)
        graph = model.graph()
        verify_graph(graph)
        return [model.read_weight(w).tobytes() for w in graph.weights if w.file]

    return Kind(make, read)


# ---- one try


def kinds(folder: Path, wanted: Sequence[str]) -> dict[str, Kind]:
    """Those that are wanted; they write in a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    groups: Mapping[tuple[str, ...], Callable[[], Iterator[tuple[str, Kind]]]] = {
        ("lg",): lambda: iter([("lg", graphs())]),
        ("ls", "lp", "lk"): envelopes,
        ("manifest", "plan", "zip"): lambda: bundles(folder),
        ("safetensors",): lambda: iter([("safetensors", safetensors(folder))]),
        ("pt2",): lambda: iter([("pt2", archives(folder))]),
        ("gguf",): lambda: iter([("gguf", ggufs(folder))]),
        ("vocabulary",): lambda: iter([("vocabulary", vocabularies(folder))]),
        ("tokenizer",): lambda: iter([("tokenizer", tokenizers(folder))]),
        ("sound",): lambda: iter([("sound", sounds(folder))]),
        ("npy", "npz"): lambda: arrays(folder),
        ("records",): lambda: iter([("records", records(folder))]),
        ("config",): lambda: iter([("config", configs(folder))]),
        ("onnx", "messages"): lambda: onnx_kinds(folder),
    }
    made = {}
    for names, group in groups.items():
        if set(names) & set(wanted):
            made |= {name: kind for name, kind in group() if name in wanted}
    return made


KINDS = (
    *("lg", "ls", "lp", "lk", "manifest", "plan", "zip", "safetensors", "records"),
    *("npy", "npz", "config", "gguf", "vocabulary", "tokenizer", "sound", "onnx", "messages"),
    "pt2",
)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def problem(kind: Kind, data: bytes) -> tuple[str, bool]:
    """What is wrong with how it was read, or nothing; and whether it was accepted."""
    before = peak_mb()
    try:
        with limited(SECONDS, Slow):
            kind.read(data)
        said, accepted = "", True
    except LumcError as e:
        good = e.exit in REFUSALS and e.what and "\n" not in e.what
        said, accepted = "" if good else f"exit {e.exit}: {e}", False
    except UnicodeDecodeError as e:  # of the harness: the commands read bytes first
        said, accepted = "" if e.object == data else traceback.format_exc(limit=-6), False
    except Slow:
        said, accepted = f"took more than {SECONDS:g} s\n{traceback.format_exc(limit=-8)}", False
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt):
            raise
        said, accepted = traceback.format_exc(limit=-8), False
    if not said and peak_mb() - before > MEGABYTES:
        said = f"took {peak_mb() - before:.0f} MB"
    return said, accepted
