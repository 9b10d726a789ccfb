"""Damaged and malicious archives of torch.export: one LumcError, never another exception, never
large memory, never anything unpickled."""

from __future__ import annotations

import pickle
import resource
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumc.disk.pt2 import MAX_DIRECTORY, read_pt2
from lumc.errors import Exit, LumcError
from lumc.frontend.aten.pt2 import import_pt2
from pt2_files import archive, net, node, tensor

BAD = (Exit.CORRUPT, Exit.UNSUPPORTED)


def outcome(path: Path) -> LumcError | None:
    try:
        import_pt2(path).graph()
    except LumcError as e:
        return e
    return None


def rejected(path: Path, code: str = "E0350", exit: Exit = Exit.CORRUPT) -> str:
    error = outcome(path)
    assert error is not None, "accepted"
    assert (error.code, error.exit) == (code, exit), error
    return str(error)


def test_the_archive_is_right(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(*net()))
    graph = import_pt2(path).graph()
    assert [w.key for w in graph.weights] == ["w", "table"]


@pytest.mark.parametrize("data", [b"", b"PK\3\4", b"not an archive" * 9, b"PK\5\6" + b"\0" * 18])
def test_garbage(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(data)
    rejected(tmp_path / "m.pt2")


def test_every_prefix_and_flipped_bits(tmp_path: Path) -> None:
    data, path = archive(*net()), tmp_path / "m.pt2"
    rng = np.random.default_rng(3)
    variants = [data[:n] for n in range(0, len(data), 37)]
    for at in rng.integers(0, 8 * len(data), 400):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << (at % 8)
        variants.append(bytes(flipped))
    for variant in variants:
        path.write_bytes(variant)
        error = outcome(path)
        assert error is None or error.exit in BAD, error


# ---- the zip


def test_compressed_entries_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("m/archive_format", b"pt2" * 1000)
    assert "compressed" in rejected(path)


def test_a_large_directory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 9, 9, MAX_DIRECTORY + 1, 0, 0)
    with path.open("wb") as f:
        f.write(b"PK\3\4")
        f.truncate(MAX_DIRECTORY + 99)
        f.seek(0, 2)
        f.write(end)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "a directory of 9 entries" in rejected(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_entries_that_overlap_or_repeat(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    data = bytearray(archive(*net()))
    at = data.rfind(b"PK\1\2")
    second = data.rfind(b"PK\1\2", 0, at)
    data[second + 42 : second + 46] = data[at + 42 : at + 46]
    path.write_bytes(bytes(data))
    assert "is not at byte" in rejected(path)
    with zipfile.ZipFile(path, "w") as z, pytest.warns(UserWarning, match="Duplicate"):
        z.writestr("m/archive_format", "pt2")
        z.writestr("m/archive_format", "pt2")
    assert "stands twice" in rejected(path)


def test_a_checksum_is_compared(tmp_path: Path) -> None:
    data = archive(*net())
    path = tmp_path / "m.pt2"
    path.write_bytes(data.replace(b'"torch.ops.aten.mm.default"', b'"torch.ops.aten.mv.default"'))
    assert "another checksum" in rejected(path)


# ---- what else it may be


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


def test_nothing_is_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, tensors = net()
    tensors["w"][0]["use_pickle"] = True
    extra = {"data/sample_inputs/model.pt": pickle.dumps(Bomb())}
    tensors["w"] = (tensors["w"][0], pickle.dumps(Bomb()))
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(program, tensors, extra))
    assert "tensor 'w' is pickled" in rejected(path, "E0351", Exit.UNSUPPORTED)
    assert capsys.readouterr().out == ""


def test_other_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    for name, said in (("m/data.pkl", "torch.save"), ("serialized_exported_program.json", "2.8")):
        with zipfile.ZipFile(path, "w") as z:
            z.writestr(name, b"x")
        assert said in rejected(path, "E0351", Exit.UNSUPPORTED)
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("readme", b"x")
    rejected(path)
    program, tensors = net()
    program["schema_version"]["major"] = 9
    path.write_bytes(archive(program, tensors))
    assert "version 9" in rejected(path, "E0351", Exit.UNSUPPORTED)
    path.write_bytes(archive(*net(), byteorder=b"big"))
    rejected(path)


# ---- the JSON


def set_at(value: Any, *path: Any) -> Callable[[Any], None]:
    def change(program: Any) -> None:
        for key in path[:-1]:
            program = program[key]
        program[path[-1]] = value

    return change


GRAPH = ("graph_module", "graph")
FIRST = (*GRAPH, "nodes", 0, "inputs", 0, "arg")  # of the first node
CHANGES: dict[str, Callable[[Any], None]] = {
    "no graph": set_at(None, *GRAPH),
    "nodes no list": set_at({}, *GRAPH, "nodes"),
    "a node that is none": set_at([1], *GRAPH, "nodes"),
    "a target that is none": set_at(7, *GRAPH, "nodes", 0, "target"),
    "an unknown reference": set_at("nosuch", *FIRST, "as_tensor", "name"),
    "an argument twice": set_at("self", *GRAPH, "nodes", 0, "inputs", 1, "name"),
    "an argument of no kind": set_at({"as_evil": 1}, *FIRST),
    "two arguments in one": set_at({"as_int": 1, "as_bool": True}, *FIRST),
    "a large number": set_at({"as_int": 1 << 80}, *FIRST),
    "a negative size": set_at(-4, *GRAPH, "tensor_values", "x", "sizes", 0, "as_int"),
    "a wrong shape": set_at(9, *GRAPH, "tensor_values", "mm", "sizes", 1, "as_int"),
    "a dtype that is none": set_at("f32", *GRAPH, "tensor_values", "x", "dtype"),
    "many dims": set_at([{"as_int": 1}] * 99, *GRAPH, "tensor_values", "x", "sizes"),
    "a result twice": set_at([{"as_tensor": {"name": "mm"}}], *GRAPH, "nodes", 1, "outputs"),
    "an output of nothing": set_at(
        {"user_output": {"arg": {"as_tensor": {"name": "nosuch"}}}},
        "graph_module", "signature", "output_specs", 0,
    ),
    "a size that nests": set_at(
        {"as_expr": {"expr_str": "Add(" * 4000 + "1"}}, *GRAPH, "tensor_values", "x", "sizes", 0
    ),
    "a size that is code": set_at(
        {"as_expr": {"expr_str": "__import__('os').system('true')"}},
        *GRAPH, "tensor_values", "x", "sizes", 0,
    ),
    "signature": set_at([], "graph_module", "signature"),
    "no constraints": set_at(None, "range_constraints"),
    "a version that is none": set_at({"major": "8"}, "schema_version"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_program_that_is_none(name: str, tmp_path: Path) -> None:
    program, tensors = net()
    CHANGES[name](program)
    (tmp_path / "m.pt2").write_bytes(archive(program, tensors))
    error = outcome(tmp_path / "m.pt2")
    assert error is not None and error.exit is Exit.CORRUPT, error
    assert error.code == "E0350"


def test_deep_and_doubled_json(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    _, tensors = net()
    for text in (
        "[" * 200_000,
        '{"graph_module": 1, "graph_module": 2}',
        "\udcff",
        "{",
        "9" * 5000,
    ):
        data = text.encode("utf-8", "surrogatepass")
        path.write_bytes(archive(data, tensors))
        rejected(path)


TENSORS: dict[str, Any] = {
    "more than there is": {"sizes": [{"as_int": 4}, {"as_int": 1 << 40}]},
    "sizes that wrap": {"sizes": [{"as_int": 1 << 32}, {"as_int": 1 << 32}]},
    "a far offset": {"storage_offset": {"as_int": 1 << 40}},
    "a negative offset": {"storage_offset": {"as_int": -4}},
    "strides that leave": {"strides": [{"as_int": 999}, {"as_int": 1}]},
    "strides of another rank": {"strides": [{"as_int": 1}]},
    "symbolic sizes": {"sizes": [{"as_expr": {"expr_str": "s0"}}, {"as_int": 3}]},
    "another layout": {"layout": 2},
    "no dtype": {"dtype": None},
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_leaves_its_bytes(name: str, tmp_path: Path) -> None:
    program, tensors = net()
    tensors["w"][0]["tensor_meta"] |= TENSORS[name]
    (tmp_path / "m.pt2").write_bytes(archive(program, tensors))
    rejected(tmp_path / "m.pt2")


def test_a_file_that_is_not_in_the_archive(tmp_path: Path) -> None:
    program, tensors = net()
    for name in ("../../../etc/passwd", "/etc/passwd", "weight_9"):
        tensors["w"][0]["path_name"] = name
        (tmp_path / "m.pt2").write_bytes(archive(program, tensors, keep="weight_0"))
        assert "which the archive lacks" in rejected(tmp_path / "m.pt2")


def test_a_dtype_that_lumc_lacks(tmp_path: Path) -> None:
    program, tensors = net()
    tensors["w"][0]["tensor_meta"]["dtype"] = 10
    (tmp_path / "m.pt2").write_bytes(archive(program, tensors))
    assert "dtype 10 of torch" in rejected(tmp_path / "m.pt2", "E0351", Exit.UNSUPPORTED)


def test_an_archive_that_changed_is_not_read(tmp_path: Path) -> None:
    """A graph holds its sha256."""
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(*net()))
    model = import_pt2(path)
    (w, *_) = model.graph().weights
    assert model.read_weight(w).shape == (4, 3)
    data = bytearray(path.read_bytes())
    at = data.find(np.arange(3, dtype="<f4").tobytes())
    data[at + 3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(LumcError, match="not the one that was imported"):
        model.read_weight(w)


def test_large_claims_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    program, tensors = net()
    tensors["w"][0]["tensor_meta"]["sizes"] = [{"as_int": 1 << 20}, {"as_int": 1 << 20}]
    tensors["w"][0]["tensor_meta"]["strides"] = [{"as_int": 0}, {"as_int": 0}]
    path.write_bytes(archive(program, tensors))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = outcome(path)
    assert error is not None and error.exit in BAD
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_reading_twice_reads_once(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(archive(*net()))
    assert read_pt2(path) is read_pt2(path)


LARGE: dict[str, Callable[[], list[Any]]] = {
    "parts": lambda: [node("chunk.default", "y", self=tensor("x"), chunks={"as_int": 1 << 40})],
    "differences": lambda: [node("diff.default", "y", self=tensor("x"), n={"as_int": 1 << 40})],
    "squares": lambda: [
        {
            "target": "_operator.mul",
            "inputs": [{"name": n, "arg": arg, "kind": 1} for n in "ab"],
            "outputs": [{"as_sym_int": {"as_name": f"n{i}"}}],
            "name": f"n{i}",
        }
        for i in range(60)
        for arg in [{"as_sym_int": {"as_name": f"n{i - 1}"}} if i else {"as_int": 3}]
    ],
}


@pytest.mark.parametrize("name", LARGE)
def test_what_would_be_written_out_at_length(name: str, tmp_path: Path) -> None:
    program, tensors = net()
    nodes, graph = LARGE[name](), program["graph_module"]["graph"]
    graph["nodes"] += nodes
    (last,) = nodes[-1]["outputs"]
    program["graph_module"]["signature"]["output_specs"].append({"user_output": {"arg": last}})
    (tmp_path / "m.pt2").write_bytes(archive(program, tensors))
    error = outcome(tmp_path / "m.pt2")
    assert error is not None and error.exit in BAD and error.code in ("E0350", "E0352"), error
