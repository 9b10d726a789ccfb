"""Pictures by a headless Chromium, where there is one.

python docs/site/shoot.py report           docs/report-light.png and docs/report-dark.png
python docs/site/shoot.py site FOLDER      every page of build/site: light, dark and narrow
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
sys.path.insert(0, str(ROOT / "tests"))
from browser import Page, browser  # noqa: E402

FORMS = {"light": (1280, 900, "light"), "dark": (1280, 900, "dark"), "narrow": (390, 844, "light")}
REPORT = {"light": (1200, 1000, "light"), "dark": (1200, 1000, "dark")}


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder: search works only where pages come from a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def report(folder: Path) -> Path:
    """The report of a search of some seconds."""
    call = [sys.executable, "-m", "lumc"]
    kept, page = ("--cache", folder / "cache"), folder / "report.html"
    passes = (
        ("search", ROOT / "graphs" / "mlp.lg", "-o", folder / "mlp.ls"),
        ("profile", folder / "mlp.ls", "-o", folder / "mlp.lp", "--trials", "24", *kept),
        ("report", folder / "mlp.lp", "-o", page, *kept),
    )
    for one in passes:
        subprocess.run([*call, *map(str, one)], check=True)
    return page


def look(page: Page, address: str, out: Path) -> None:
    """Pictures of all pages; says what is too wide, and whether the search finds something."""
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(p for p in SITE.glob("*.html") if p.stem != "404"):
        for form, size in FORMS.items():
            page.show(address + file.name, *size)
            page.screenshot(out / f"{file.stem}-{form}.png", whole=False)
            over = page.evaluate("document.documentElement.scrollWidth") - size[0]
            if over > 0:
                print(f"{file.name}, {form}: {over} px too wide")
    page.show(f"{address}index.html", *FORMS["light"])
    asked = "(i => { i.value = 'roofline'; i.dispatchEvent(new KeyboardEvent('keyup')) })"
    found = "document.querySelectorAll('#mkdocs-search-results article').length > 2"
    typed = f"{asked}(document.getElementById('mkdocs-search-query')), {found}"
    print("search:", "finds" if page.becomes(typed, True, 20) else "finds nothing")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made = report(folder) if sys.argv[1:] == ["report"] else None
        with served(SITE) as address, browser(folder) as page:
            if made:
                for name, size in REPORT.items():
                    page.show(made, *size)
                    page.screenshot(ROOT / "docs" / f"report-{name}.png", whole=False)
            else:
                look(page, address, Path(sys.argv[2]))
            away = (r for r in page.requests if not r.startswith((address, "file:", "data:")))
            print("\n".join(dict.fromkeys([*page.complaints, *away])))


if __name__ == "__main__":
    main()
