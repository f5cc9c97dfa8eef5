"""Serve a built site over HTTP and follow its links: ``python -m tests.site.follow_links FOLDER``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import urlopen


class _Page(HTMLParser):
    """A page's links, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places |= {place for name in ("id", "name") if (place := given.get(name))}
        self.links += [link for name in ("href", "src") if (link := given.get(name)) and tag != "base"]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parameter's name in the base class
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP, and yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def follow_links(folder: Path) -> tuple[set[str], list[str]]:
    """Return the paths that were reached from a site's first page, and each dead link as "page: link"."""
    with served(folder) as home:
        pages: dict[str, _Page | None] = {}  # None for what is no page
        links: list[tuple[str, str]] = []
        dead: list[str] = []
        waiting = [(home, home)]
        while waiting:
            source, url = waiting.pop()
            if url in pages:
                continue
            try:
                with urlopen(url) as answer:
                    body = answer.read()
                    is_page = answer.headers.get_content_type() == "text/html"
            except HTTPError as error:
                pages[url] = None
                dead.append(f"{urlsplit(source).path}: {urlsplit(url).path}: {error.code}")
                continue
            page = pages[url] = _Page(body.decode("utf-8")) if is_page else None
            for link in page.links if page is not None else ():
                target = urljoin(url, link)
                if target.startswith(home):
                    links.append((url, target))
                    waiting.append((url, urldefrag(target).url))
        for source, target in links:
            url, place = urldefrag(target)
            page = pages[url]
            if page is not None and unquote(place) not in page.places:
                dead.append(f"{urlsplit(source).path}: {urlsplit(url).path}#{place}: no such place")
        return {unquote(urlsplit(url).path) for url in pages}, sorted(set(dead))


def main(folder: Path) -> int:
    """Print dead links and pages without a link to them; return 1 if there are any."""
    reached, dead = follow_links(folder)
    pages = {f"/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*.html")} - {"/404.html"}
    dead += [f"{page}: no link leads there" for page in sorted(pages - reached)]
    print("\n".join([*dead, f"{len(reached)} files reached over HTTP, {len(dead)} dead links"]))
    return int(bool(dead))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
