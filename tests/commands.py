"""The command line, called in this process by tests."""

from pathlib import Path

from click.testing import CliRunner, Result

from lumc.cli import commands
from lumc.errors import LumcError


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
