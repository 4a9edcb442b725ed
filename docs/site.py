"""The site of `make site`: pages of the repository beside those of docs/, with the links between them.

mkdocs takes docs/ alone. The README is the front page here, and whatever else a page links to (the notation
of specs, the changelog, results of benchmarks, files of the program) is brought in below repo/.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()([^()\s#:]+)(?=[#)])")  # no address of the web, which has a colon
CODE = re.compile(r"(?ms)^```.*?^```$|`[^`\n]+`")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the front page, and every file outside docs/ that is linked to, also from those."""
    waiting = ["index.md", *(file.src_uri for file in files.documentation_pages())]
    while waiting:
        uri = waiting.pop()
        if files.get_file_from_path(uri) is None and (ROOT / _source(uri)).is_file():
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / _source(uri))))
        elif uri.startswith("repo/"):
            continue  # it is there, or nowhere
        waiting += [target for target in _links(uri) if target.startswith("repo/")]
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as the site has their targets; a dead one stays, and fails the build."""
    uri = page.file.src_uri

    def moved(link: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_target(uri, link[1])), posixpath.dirname(uri) or ".")

    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(moved, markdown[end:])])


def _links(uri: str) -> Iterator[str]:
    """Where the links of a page lead that is text, as the site calls it."""
    if uri.endswith(".md") and (ROOT / _source(uri)).is_file():
        text = CODE.sub("", (ROOT / _source(uri)).read_text(encoding="utf-8"))
        for link in LINK.findall(text):
            yield _uri(_target(uri, link))


def _target(uri: str, link: str) -> str:
    """What a link of a page leads to, from the top of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(_source(uri)), link))


def _source(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    if uri == "index.md":
        return "README.md"
    return uri.removeprefix("repo/") if uri.startswith("repo/") else f"docs/{uri}"


def _uri(source: str) -> str:
    """Where the site has a file of the repository."""
    if source == "README.md":
        return "index.md"
    return source.removeprefix("docs/") if source.startswith("docs/") else f"repo/{source}"
