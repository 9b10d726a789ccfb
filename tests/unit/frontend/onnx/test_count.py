"""Positions of what is found, of a given number: against onnxruntime, in its order."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import lumc
from lumc.command.sources import parse_given
from lumc.errors import Exit, LumcError
from lumc.frontend.onnx import import_onnx, ops_count
from lumc.oracle.graph import evaluate
from onnx_models import one_node, onnxruntime

RNG = np.random.default_rng(2)


def ours(path: Path, feed: dict, count: int) -> np.ndarray:
    model = import_onnx(path, counts={"it": count})
    found, _ = evaluate(model.graph(), "main", feed, model.read_weight, declared=True)
    return next(iter(found.values()))


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(9,), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("more", [0, 2, -2])
def test_nonzero(kind: type, shape: tuple, more: int, tmp_path: Path) -> None:
    x = (RNG.random(shape) > 0.5).astype(kind)
    x.ravel()[:3] = 1
    model = one_node("NonZero", {"x": x})
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "found"
    onnx.save(model, tmp_path / "m.onnx")
    (wanted,) = onnxruntime(tmp_path / "m.onnx", {"x": x})
    count = wanted.shape[1] + more
    found = ours(tmp_path / "m.onnx", {"x": x}, count)
    outside = np.broadcast_to(np.array(shape)[:, None], (len(shape), max(more, 0)))
    np.testing.assert_array_equal(found, np.hstack([wanted, outside])[:, :count])


def boxes(n: int, b: int = 1, c: int = 2, classes_alike: bool = False) -> dict:
    return {
        "boxes": RNG.uniform(0, 1, (b, n, 4)).astype("f4"),
        "scores": np.round(RNG.random((b, c, n)), 1 if classes_alike else 7).astype("f4"),
    }


def chosen(folder: Path, feed: dict, most: int, said: dict, centred: int = 0) -> tuple:
    given = {n: None if v is None else np.array([v], "f4") for n, v in said.items()}
    inputs = feed | {"most": np.array([most])} | given
    names = ["most", "overlap", "score"]
    model = one_node("NonMaxSuppression", inputs, 1, 17, "", names, center_point_box=centred)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx", onnxruntime(folder / "m.onnx", feed)[0]


SAID = [
    (9, 1, 1, 5, {"overlap": 0.5, "score": 0.3}),
    (20, 2, 3, 4, {"overlap": 0.3, "score": None}),
    (30, 2, 2, 99, {"overlap": 0.6, "score": 0.2}),
    (12, 1, 2, 12, {"overlap": None, "score": None}),
    (12, 1, 2, 12, {"overlap": 0.0, "score": 0.5}),
]


# how boxes are written, and scores that are alike, are the same for many boxes and for few
@pytest.mark.parametrize(("n", "b", "c", "most", "said", "centred", "alike"), [
    pytest.param(*s, centred, alike, marks=[pytest.mark.deep] * (s[0] > 12 and centred + alike > 0))
    for s in SAID for centred in (0, 1) for alike in (False, True)
])  # fmt: skip
def test_boxes(
    n: int, b: int, c: int, most: int, said: dict, centred: int, alike: bool, tmp_path: Path
) -> None:
    feed = boxes(n, b, c, alike)
    path, wanted = chosen(tmp_path, feed, most, said, centred)
    counts = {len(wanted) + 3}
    if not (centred or alike):
        counts |= {len(wanted), max(1, len(wanted) - 2)}
    for count in counts:
        outside = np.tile([[b, c, n]], (max(count - len(wanted), 0), 1))
        np.testing.assert_array_equal(ours(path, feed, count), np.vstack([wanted, outside])[:count])


def test_boxes_as_c_whose_coordinates_are_looked_up(tmp_path: Path) -> None:
    """What lies beyond the last box is 0."""
    feed = boxes(40, c=1)
    path, wanted = chosen(tmp_path, feed, 6, {"overlap": 0.4, "score": 0.2})
    model, count = onnx.load(path), len(wanted) + 2
    graph, make = model.graph, onnx.helper.make_node
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "two"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "first"))
    graph.node.append(make("Gather", ["y0", "two"], ["place"], axis=1))
    graph.node.append(make("Squeeze", ["boxes", "first"], ["flat"]))
    graph.node.append(make("Gather", ["flat", "place"], ["best"]))
    graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("best", 1, ("n", 4)))
    onnx.save(model, path)
    bundle = lumc.compile(import_onnx(path, counts={"it": count}), estimate=True)
    (found,) = bundle.run(feed).values()
    wanted = np.vstack([feed["boxes"][0][wanted[:, 2]], np.zeros((2, 4), "f4")])
    np.testing.assert_array_equal(found, wanted)


def test_without_a_count_it_is_said_how_to_give_one(tmp_path: Path) -> None:
    path, _ = chosen(tmp_path, boxes(9), 3, {"overlap": 0.5, "score": None})
    with pytest.raises(LumcError) as e:
        import_onnx(path)
    assert e.value.exit is Exit.UNSUPPORTED and "--count NODE=N" in e.value.fix
    with pytest.raises(LumcError) as e:
        import_onnx(path, counts={"it": 3, "other": 4})
    assert e.value.exit is Exit.USAGE and "other" in e.value.what
    given = parse_given((), (), ("it=3",))
    assert given is not None and given.counts == {"it": 3}
    for wrong in ("it", "it=", "it=0", "it=x", "=3"):
        with pytest.raises(LumcError, match="expected NODE=NUMBER"):
            parse_given((), (), (wrong,))


def test_more_boxes_than_are_unrolled(tmp_path: Path) -> None:
    path, _ = chosen(tmp_path, boxes(400), 400, {"overlap": 0.5, "score": None})
    with pytest.raises(LumcError) as e:
        import_onnx(path, counts={"it": 400})
    assert e.value.exit is Exit.UNSUPPORTED and "at most 256" in e.value.fix


@pytest.mark.parametrize("what", ["overlap", "order"])
def test_a_mistake_is_seen(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = boxes(20)
    path, wanted = chosen(tmp_path, feed, 9, {"overlap": 0.3, "score": None})
    exact = ops_count.first_of
    if what == "overlap":
        monkeypatch.setattr(ops_count, "overlapping", lambda own, sides, least: False)
    else:
        monkeypatch.setattr(ops_count, "first_of", lambda f, p, n: exact(f, p[::-1], n))
    assert not np.array_equal(ours(path, feed, len(wanted)), wanted)
