"""The driver that runs kernels in the emulator behaves like the one of a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from emulator import Array
from fake_gpu import driver, environment, fake_fatbin

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, NO_BINARY, NOT_FOUND = 1, 2, 100, 209, 500
NOT_READY, ILLEGAL_ADDRESS, CAPTURE_UNSUPPORTED = 600, 700, 900
DYNAMIC_SHARED = 8  # attribute of a function

SCALE = """#include "lumc_dev.h"
extern "C" __global__ void scale(const float *__restrict__ B_x, float *__restrict__ B_y)
{
    LUMC_SHARED(float, S);
    int i = blockIdx.x * 32 + threadIdx.x;
    S[threadIdx.x] = B_x[i];
    B_y[i] = 2 * S[threadIdx.x];
}
LUMC_EXPORT(scale)
"""
ADD = """#include "lumc_dev.h"
extern "C" __global__ void add(const float *__restrict__ B_x, float *__restrict__ B_y)
{
    B_y[blockIdx.x * 32 + threadIdx.x] += B_x[blockIdx.x * 32 + threadIdx.x];
}
LUMC_EXPORT(add)
"""


class Driver:
    """The functions of libcuda; every call but ``result`` must succeed."""

    def __init__(self, folder: Path) -> None:
        # a copy is a driver of its own
        path = shutil.copy(driver() / "libcuda.so.1", folder / "libcuda.so.1")
        self.library = ctypes.CDLL(str(path))

    def result(self, name: str, *arguments: object) -> int:
        # numbers are passed as 64 bits: the lower half where the driver takes an int
        numbers = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        return int(getattr(self.library, name)(*numbers))

    def __call__(self, name: str, *arguments: object) -> None:
        assert self.result(name, *arguments) == 0

    def make(self, name: str, *arguments: object) -> int:
        """The handle or address that a function puts behind its first argument."""
        out = ctypes.c_uint64()
        self(name, ctypes.byref(out), *arguments)
        return out.value

    def start(self) -> Driver:
        self("cuInit", 0)
        self("cuCtxPushCurrent_v2", self.make("cuDevicePrimaryCtxRetain", 0))
        return self

    def upload(self, array: Array) -> int:
        p = self.make("cuMemAlloc_v2", array.nbytes)
        self("cuMemcpyHtoD_v2", p, array.ctypes.data_as(ctypes.c_void_p), array.nbytes)
        return p

    def download(self, p: int, like: Array) -> Array:
        out = np.empty_like(like)
        self("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p), p, out.nbytes)
        return out

    def launch(
        self, function: int, blocks: int, shared: int, stream: int, pointers: Sequence[int]
    ) -> int:
        values = (ctypes.c_uint64 * len(pointers))(*pointers)
        listed = (ctypes.c_void_p * len(pointers))(
            *(ctypes.addressof(values) + 8 * i for i in range(len(pointers)))
        )
        shape = (blocks, 1, 1, 32, 1, 1)
        return self.result("cuLaunchKernel", function, *shape, shared, stream, listed, None)


@pytest.fixture
def cuda(tmp_path: Path) -> Driver:
    return Driver(tmp_path).start()


@pytest.fixture(scope="module")
def image() -> bytes:
    return fake_fatbin([SCALE, ADD])


def test_launch_capture_and_replay(cuda: Driver, image: bytes) -> None:
    x = np.arange(96, dtype=np.float32)
    module = cuda.make("cuModuleLoadData", image)
    scale, add = (cuda.make("cuModuleGetFunction", module, n) for n in (b"scale", b"add"))
    a, b = cuda.upload(x), cuda.make("cuMemAlloc_v2", x.nbytes)
    assert np.isnan(cuda.download(b, x)).all()  # nothing is there before a write
    stream = cuda.make("cuStreamCreate", 1)
    begin, end = (cuda.make("cuEventCreate", 0) for _ in range(2))
    cuda("cuEventRecord", begin, stream)
    assert cuda.launch(scale, 3, 128, stream, [a, b]) == 0
    cuda("cuEventRecord", end, stream)
    time = ctypes.c_float()
    assert cuda.result("cuEventElapsedTime", ctypes.byref(time), begin, end) == NOT_READY
    cuda("cuStreamSynchronize", stream)
    cuda("cuEventElapsedTime", ctypes.byref(time), begin, end)
    assert time.value >= 0
    np.testing.assert_array_equal(cuda.download(b, x), 2 * x)
    cuda("cuStreamBeginCapture_v2", stream, 1)
    assert cuda.launch(scale, 3, 128, stream, [a, b]) == 0
    assert cuda.launch(add, 3, 0, stream, [a, b]) == 0
    assert cuda.result("cuStreamSynchronize", stream) == CAPTURE_UNSUPPORTED
    assert cuda.result("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 4) == CAPTURE_UNSUPPORTED
    graph = ctypes.c_uint64()
    cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
    np.testing.assert_array_equal(cuda.download(b, x), 2 * x)  # only recorded
    replay = cuda.make("cuGraphInstantiateWithFlags", graph.value, 0)
    cuda("cuGraphDestroy", graph.value)
    x += 1
    cuda("cuMemcpyHtoD_v2", a, x.ctypes.data_as(ctypes.c_void_p), x.nbytes)
    for _ in range(2):
        cuda("cuGraphLaunch", replay, stream)
        cuda("cuStreamSynchronize", stream)
        np.testing.assert_array_equal(cuda.download(b, x), 3 * x)
    for name, handle in (
        ("cuGraphExecDestroy", replay),
        ("cuEventDestroy_v2", begin),
        ("cuStreamDestroy_v2", stream),
        ("cuModuleUnload", module),
        ("cuMemFree_v2", a),
    ):
        cuda(name, handle)


def test_refusals(cuda: Driver, image: bytes) -> None:
    out, x = ctypes.c_uint64(), np.zeros(32, np.float32)
    module = cuda.make("cuModuleLoadData", image)
    scale = cuda.make("cuModuleGetFunction", module, b"scale")
    a, b = cuda.upload(x), cuda.upload(x)
    host = x.ctypes.data_as(ctypes.c_void_p)
    assert cuda.result("cuMemcpyHtoD_v2", a, host, 129) == INVALID_VALUE
    assert cuda.result("cuMemcpyDtoH_v2", host, a + 4, 128) == INVALID_VALUE
    assert cuda.result("cuMemFree_v2", a + 256) == INVALID_VALUE
    assert cuda.result("cuMemAlloc_v2", ctypes.byref(out), 1 << 40) == OUT_OF_MEMORY
    assert cuda.result("cuModuleGetFunction", ctypes.byref(out), module, b"x") == NOT_FOUND
    for real in (b"\177ELF" + bytes(60), b"\x50\xed\x55\xba" + bytes(60), b".version 8.0\n\0"):
        assert cuda.result("cuModuleLoadData", ctypes.byref(out), real) == NO_BINARY
    assert cuda.launch(scale, 1, 49153, 0, [a, b]) == INVALID_VALUE  # not allowed so far
    assert cuda.result("cuFuncSetAttribute", scale, DYNAMIC_SHARED, 300 << 10) == INVALID_VALUE
    cuda("cuFuncSetAttribute", scale, DYNAMIC_SHARED, 64 << 10)
    assert cuda.launch(scale, 1, 49153, 0, [a, b]) == 0
    packed, size = (ctypes.c_uint64 * 2)(a, b), ctypes.c_size_t(8)
    extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(size), 0)
    launch = ("cuLaunchKernel", scale, 1, 1, 1, 32, 1, 1, 128, 0, None, extra)
    assert cuda.result(*launch) == INVALID_VALUE  # 8 bytes of arguments for two pointers
    size.value = 16
    cuda(*launch)
    text = ctypes.c_char_p()
    cuda("cuGetErrorName", NO_BINARY, ctypes.byref(text))
    assert text.value == b"CUDA_ERROR_NO_BINARY_FOR_GPU"


def test_fault_of_a_kernel(cuda: Driver, image: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """It comes out when somebody waits, and nothing works afterwards."""
    x = np.zeros(32, np.float32)
    scale = cuda.make("cuModuleGetFunction", cuda.make("cuModuleLoadData", image), b"scale")
    a, b = cuda.upload(x), cuda.upload(x)
    assert cuda.launch(scale, 4, 128, 0, [a, b]) == 0
    assert cuda.result("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert "scale: out of bounds: thread 0 of block" in capfd.readouterr().err
    assert cuda.launch(scale, 1, 128, 0, [a, b]) == ILLEGAL_ADDRESS


def test_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMC_FAKE_SM", "89")
    cuda, value = Driver(tmp_path).start(), ctypes.c_int()
    for attribute, want in ((75, 8), (76, 9), (97, 101376), (10, 32)):
        cuda("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0)
        assert value.value == want
    monkeypatch.setenv("LUMC_FAKE_MISSING", "1")
    assert cuda.result("cuInit", 0) == NO_DEVICE


def test_environment_of_a_process() -> None:
    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    for settings, want in (({}, "0"), ({"missing": 1}, str(NO_DEVICE))):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(**settings),
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == want, done.stderr


PYCUDA = """
import sys
import numpy as np
import pycuda.driver as cuda
cuda.init()
context = cuda.Device(0).retain_primary_context()
context.push()
x = np.arange(64, dtype=np.float32)
y = np.empty_like(x)
module = cuda.module_from_buffer(sys.stdin.buffer.read())
scale = module.get_function("scale")
scale.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 16)
a, b = (cuda.mem_alloc(x.nbytes) for _ in range(2))
stream, begin, end = cuda.Stream(), cuda.Event(), cuda.Event()
cuda.memcpy_htod_async(a, x, stream)
begin.record(stream)
scale(a, b, block=(32, 1, 1), grid=(2, 1), shared=128, stream=stream)
end.record(stream)
cuda.memcpy_dtoh_async(y, b, stream)
stream.synchronize()
assert (y == 2 * x).all() and end.time_since(begin) >= 0
context.pop()
print(cuda.Device(0).compute_capability())
"""


def test_pycuda(image: bytes) -> None:
    pytest.importorskip("pycuda", reason="pycuda is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PYCUDA], env=environment(), input=image, capture_output=True
    )
    assert done.stdout.split() == [b"(9,", b"0)"], done.stderr.decode()
