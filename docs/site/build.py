"""Build the site: the pages of docs and the README, gathered in one folder, with search.

    python docs/site/build.py                  (make site): build/site/index.html

Pages link to each other as they lie in the repository. Here they lie side by side, so links are
rewritten; of a link to a source file the text is left, as the site has no such files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from posixpath import normpath

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).parent
PAGES = ROOT / "build" / "site-pages"
ELSEWHERE = {  # pages that lie outside of docs, and how they are called on the site
    "README.md": "index.md",
    "bench/README.md": "bench.md",
    "src/lumc/search/rules/README.md": "rules.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
UNUSED = {"docs/package.md"}  # the page of the package index
PICTURES = (".svg", ".png")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def pages() -> dict[str, str]:
    """Every page by its path in the repository: its name on the site."""
    own = {f"docs/{p.name}": p.name for p in sorted((ROOT / "docs").glob("*.md"))}
    others = {path: name for path, name in ELSEWHERE.items() if (ROOT / path).exists()}
    return {path: name for path, name in (own | others).items() if path not in UNUSED}


def rewritten(text: str, path: str, known: dict[str, str]) -> str:
    """A page whose links lead to pages of the site."""

    def link(m: re.Match[str]) -> str:
        bang, words, target = m.groups()
        if ":" in target or target.startswith("#"):
            return m[0]
        file, sign, anchor = target.partition("#")
        file = normpath(f"{Path(path).parent.as_posix()}/{file}")
        if file in known:
            words = title(file) if words.endswith((".md", "/")) else words
            return f"{bang}[{words}]({known[file]}{sign}{anchor})"
        if file.endswith(PICTURES):
            return f"{bang}[{words}]({Path(file).name})"
        return words

    parts = FENCE.split(text)
    return "".join(p if i % 2 else LINK.sub(link, p) for i, p in enumerate(parts))


def title(path: str) -> str:
    """What a page calls itself: said where the repository says its path."""
    lines = (ROOT / path).read_text().splitlines()
    return next(line for line in lines if line.startswith("# ")).removeprefix("# ")


def gather(folder: Path) -> None:
    """All pages, pictures and the style, side by side."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    known = pages()
    for path, name in known.items():
        (folder / name).write_text(rewritten((ROOT / path).read_text(), path, known))
    for picture in (p for p in (ROOT / "docs").iterdir() if p.suffix in PICTURES):
        shutil.copy(picture, folder)
    shutil.copy(SITE / "site.css", folder)


if __name__ == "__main__":
    gather(PAGES)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--quiet"]
    subprocess.run([*command, "-f", SITE / "mkdocs.yml"], check=True)
    print(ROOT / "build" / "site" / "index.html")
    print("with search: python -m http.server -d build/site")
