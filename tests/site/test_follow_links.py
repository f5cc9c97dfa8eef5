"""The link checker finds dead links; the built site has none, and has the pages that readers look for."""

from pathlib import Path

import pytest

from tests.site.follow_links import follow_links, main

SITE = Path(__file__).parent.parent.parent / "build/site"


def test_dead_links_places_and_images_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a b.html").write_text('<h2 id="här">x</h2><a href="index.html#top">up</a>', encoding="utf-8")
    (tmp_path / "index.html").write_text(
        '<a href="a%20b.html#h%C3%A4r">good</a> <a href="https://elsewhere.example/x">not followed</a> '
        '<a href="#nowhere">x</a> <a href="gone.html">x</a> <img src="gone.png"> <a href="a%20b.html#no">x</a>'
    )
    (tmp_path / "lonely.html").write_text("no links here")
    reached, dead = follow_links(tmp_path)
    assert "/a b.html" in reached
    assert {link.split(": ", 1)[1] for link in dead} == {
        "/#nowhere: no such place",
        "/index.html#nowhere: no such place",
        "/a%20b.html#no: no such place",
        "/gone.html: 404",
        "/gone.png: 404",
    }
    assert main(tmp_path) == 1
    assert "/lonely.html: no link leads there" in capsys.readouterr().out


@pytest.mark.skipif(not SITE.exists(), reason="the site isn't built: make docs")
def test_results_plug_ins_the_dashboard_and_the_source_are_reached() -> None:
    reached, dead = follow_links(SITE)
    assert dead == []
    assert main(SITE) == 0  # and no page is without a link to it
    wanted = "results.html", "plugins/openvino.html", "plugins/vllm.html", "dashboard.json", "source.html"
    assert {f"/{page}" for page in wanted} <= reached
    source = "/source/specdec/strategies/base.py.txt"
    assert source in reached
    own = SITE.parent.parent / "specdec/strategies/base.py"
    assert (SITE / source[1:]).read_text(encoding="utf-8") == own.read_text(encoding="utf-8")
