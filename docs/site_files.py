"""A hook of mkdocs: adds pages from outside ``docs/``, and the source code as text.

Links in the repository lead from file to file; in the site they lead to the files' pages. A link to a file that is
missing in the site fails a strict build.
"""

import ast
import logging
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# Repository path -> path in the site's sources.
PAGES = {
    "benchmarks/RESULTS.md": "results.md",
    "benchmarks/README.md": "benchmarks.md",
    "plugins/specdec-datastore/README.md": "plugins/datastore.md",
    "plugins/specdec-distributed/README.md": "plugins/distributed.md",
    "plugins/specdec-flash/README.md": "plugins/flash.md",
    "plugins/specdec-openvino/README.md": "plugins/openvino.md",
    "plugins/specdec-vllm/README.md": "plugins/vllm.md",
    "plugins/specdec-vllm/UPSTREAM.md": "plugins/vllm-upstream.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
    "benchmarks/results": "source/results.md",
    "plugins/specdec-openvino": "plugins/openvino.md",
    "specdec/apps/serving/dashboard.json": "dashboard.json",
}
PAGES |= {
    f"benchmarks/notebook/{path.name}": f"notebook/{'index.md' if path.stem == 'README' else path.name}"
    for path in (ROOT / "benchmarks/notebook").glob("*.md")
}
GENERATED = "source.md", "source/results.md"
SOURCES = (
    "specdec/**/*.py",
    "plugins/*/*.py",
    "plugins/*/specdec_*/**/*.py",
    "benchmarks/**/*.py",
    "benchmarks/results/*",
)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
log = logging.getLogger("mkdocs.hooks")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files from outside ``docs/``."""
    for path, target in PAGES.items():
        if (ROOT / path).is_file() and target != "index.md":
            files.append(File.generated(config, target, abs_src_path=str(ROOT / path)))
    for path in _sources():
        files.append(File.generated(config, _as_text(path), abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "source.md", content=_index(_sources(), "specdec/", "Source code")))
    results = _index(_sources(), "benchmarks/results/", "Recorded runs")
    files.append(File.generated(config, "source/results.md", content=results))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files by links to their pages."""
    if page.file.src_uri in GENERATED:
        return markdown
    homes = {target: path for path, target in PAGES.items() if target != "index.md" and (ROOT / path).is_file()}
    folder = posixpath.dirname(homes.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    here = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target, anchor_mark, anchor = match[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        found = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else _as_text(path))
        if found.startswith("source/") and found not in GENERATED and path not in _sources():
            log.warning("%s links to %s, which isn't in the site", page.file.src_uri, path)
        return f"{match[1]}{posixpath.relpath(found, here or '.')}{anchor_mark}{anchor}{match[3]}"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(lead, part) for part in parts)


def _sources() -> list[str]:
    return sorted({path.relative_to(ROOT).as_posix() for glob in SOURCES for path in ROOT.glob(glob) if path.is_file()})


def _as_text(path: str) -> str:
    """A file's path in the site: as text, which browsers show."""
    return f"source/{path}.txt"


def _index(paths: list[str], below: str, title: str) -> str:
    """A page of links to files, each with the first line of its docstring."""
    return "\n".join([f"# {title}", "", *_lines(paths, below)])


def _lines(paths: list[str], below: str) -> Iterator[str]:
    folder = ""
    start = "" if below == "specdec/" else "../"
    for path in paths:
        if not path.startswith(below):
            continue
        if posixpath.dirname(path) != folder:
            folder = posixpath.dirname(path)
            yield f"\n## {folder}\n"
        about = ""
        if path.endswith(".py"):
            text = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or ""
            about = f": {text.splitlines()[0]}" if text else ""
        yield f"- [{os.path.basename(path)}]({start}{_as_text(path)}){about}"
