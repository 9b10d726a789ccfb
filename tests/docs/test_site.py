"""Links of the pages lead somewhere, and the site has them all."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from lumc.report.codes import meanings

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "site" / "build.py")
assert SPEC and SPEC.loader
site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site)
PLOT = importlib.util.spec_from_file_location("zoo_plot", ROOT / "bench" / "zoo" / "plot.py")
assert PLOT and PLOT.loader
plot = importlib.util.module_from_spec(PLOT)
PLOT.loader.exec_module(plot)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def without_code(text: str) -> str:
    return "".join(site.FENCE.split(text)[::2])


def anchors(text: str) -> set[str]:
    """Of the headings of a page, as they are made of their words."""
    words = (re.sub(r"[^\w\- ]", "", h.lower()) for h in HEADING.findall(without_code(text)))
    return {w.strip().replace(" ", "-") for w in words}


@pytest.mark.parametrize("path", site.pages())
def test_links_lead_somewhere(path: str) -> None:
    page = ROOT / path
    for _, _, target in site.LINK.findall(without_code(page.read_text())):
        if ":" in target:
            continue
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text()), target


@pytest.mark.parametrize("path", site.pages())
def test_no_anchor_begins_with_a_digit(path: str) -> None:
    """Scripts of the site use them as selectors, where that is an error."""
    assert not [a for a in anchors((ROOT / path).read_text()) if a[0].isdigit()]


def test_the_site_has_every_page_and_its_links_stay_on_it(tmp_path: Path) -> None:
    site.gather(tmp_path / "pages")
    there = {p.name for p in (tmp_path / "pages").iterdir()}
    for path in (tmp_path / "pages").glob("*.md"):
        for _, _, target in site.LINK.findall(without_code(path.read_text())):
            file = target.partition("#")[0]
            assert ":" in target or not file or file in there, f"{path.name}: {target}"
    listed = re.findall(r"(\S+\.md)$", (ROOT / "docs/site/mkdocs.yml").read_text(), re.MULTILINE)
    missing = set(site.pages().values()) - set(listed) - {"changelog.md", "contributing.md"}
    assert not missing and set(listed) <= there
    codes = re.findall(r"^\| (E\d{4}) ", (tmp_path / "pages" / "errors.md").read_text(), re.M)
    assert codes == list(meanings())


def test_the_picture_of_the_zoo_is_of_its_rows() -> None:
    rows = json.loads((ROOT / "docs" / "zoo.json").read_text())
    assert plot.picture(rows) == (ROOT / "docs" / "zoo.svg").read_text(), "make zoo-table"
