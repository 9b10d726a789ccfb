"""The command line, called in this process by tests."""

from pathlib import Path

from click.testing import CliRunner, Result

from lumc.cli import commands
from lumc.errors import LumcError

BESIDE = "profile: waiting for process"  # of another test, which measures too
MATMUL = """lumc graph 1
input x f32[16, 48]
input w f32[48, 32]
t0 f32[m:16, n:32, k:48] = mul x[m, k], w[k, n]
t1 f32[m:16, n:32] = sum k:48 of t0[m, n, k]
output y = t1
"""
SQUARE = """lumc graph 1
input x f32[16]
t f32[m:16] = mul x[m], x[m]
output y = t
"""
# minutes of trials: several kernels, none of which is at its bound at once
LONG = """lumc graph 1
input x f32[48, 320]
input w f32[320, 288]
input v f32[288, 272]
t0 f32[m:48, n:288, k:320] = mul x[m, k], w[k, n]
t1 f32[m:48, n:288] = sum k:320 of t0[m, n, k]
t2 f32[m:48, n:288] = sin t1[m, n]
t3 f32[m:48, n:272, k:288] = mul t2[m, k], v[k, n]
t4 f32[m:48, n:272] = sum k:288 of t3[m, n, k]
t5 f32[m:48, n:272] = mul t4[m, n], f32(0.01)
t6 f32[m:48, n:272] = exp2 t5[m, n]
t7 f32[m:48] = sum n:272 of t6[m, n]
t8 f32[m:48] = recip t7[m]
t9 f32[m:48, n:272] = mul t6[m, n], t8[m]
output y = t9
"""


class Lumc:
    """Runs the command line in this process; ``fails`` expects an exit code and a message."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def raw(self, *args: object, input: bytes | None = None) -> Result:
        return CliRunner().invoke(commands, [str(a) for a in args], input=input)

    def __call__(self, *args: object, input: bytes | None = None) -> str:
        result = self.raw(*args, input=input)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    def fails(self, exit: int, *args: object, input: bytes | None = None) -> str:
        result = self.raw(*args, input=input)
        error = result.exception
        if isinstance(error, LumcError):
            assert int(error.exit) == exit, str(error)
            return str(error)
        if error is not None and not isinstance(error, SystemExit):
            raise error
        assert result.exit_code == exit, result.output
        return result.output
