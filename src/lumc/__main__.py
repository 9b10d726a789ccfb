"""``lumc`` and ``python -m lumc``."""

import sys


def main() -> None:
    """Run the command line. ^C is no error while it is being imported either."""
    try:
        from lumc.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # Exit.INTERRUPTED, without one more import


if __name__ == "__main__":
    main()
