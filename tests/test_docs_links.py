"""Links in the documentation lead to files and headings that exist."""

import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest
from running import ROOT

TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [page for page in [*TOP, *sorted((ROOT / "docs").rglob("*.md"))] if page.exists()]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    """A page without its fenced blocks of code."""
    return re.sub(r"^(```|~~~).*?^\1[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)


def slugs(text: str) -> set[str]:
    """Anchors of all headings by GitHub's rule; repeated ones get -1, -2 and so on."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)? *$", prose(text), re.MULTILINE):
        plain = LINK.sub(lambda link: link[0].rpartition("](")[0].lstrip("!["), heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken(page: Path) -> list[str]:
    """Relative links of a page whose file or heading does not exist."""
    wrong = []
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page.read_text(encoding="utf-8")))):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (page.parent / name).resolve() if name else page
        there = target.exists() and ROOT in target.parents
        if not there or (anchor and anchor not in slugs(target.read_text(encoding="utf-8"))):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_slugs_follow_the_rule_of_github() -> None:
    text = "# ResNet-56 at 47 % and 20 %\n## `--align`: [which](x.md) _one_?\n## A\n## A\n"
    text += "```sh\n# a comment\n```\n"
    assert slugs(text) == {"resnet-56-at-47--and-20-", "--align-which-_one_", "a", "a-1"}


def test_broken_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(broken.__globals__, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("# There\n")
    page = tmp_path / "b.md"
    page.write_text("# Here\n[1](a.md#there) [2](#here) [3](https://x.y/#z) `[4](code.md)`\n")
    assert broken(page) == []
    page.write_text("# Here\n[1](a.md#gone) [2](#gone) [3](c.md) ![4](../a.png)\n")
    assert broken(page) == ["a.md#gone", "#gone", "c.md", "../a.png"]
