"""``python -m lumc``."""

from lumc.cli import main

main()
