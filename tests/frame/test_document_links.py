"""Links of the documents: files and anchors are there, addresses are well-formed."""

from __future__ import annotations

import http.server
import re
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support import links as link_checker
from support.documents import DOCUMENTS, ROOT, anchors, external_links, links, read


@pytest.mark.parametrize("document", DOCUMENTS)
def test_relative_links_lead_to_files_and_headings(document):
    for target in links(read(document)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / document).parent / path if path else ROOT / document
        assert not path.startswith("/"), target
        assert file.exists(), target
        assert file.resolve().is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(file.read_text()), target


def test_external_links_are_well_formed():
    found = external_links()
    assert len(found) > 20
    for address in found:
        parts = urlsplit(address)
        assert parts.scheme == "https", address
        assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), address
        assert not re.search(r"[\s<>\"'`]|[.,;:]$", address), address
        assert "//" not in parts.path, address


def test_anchors_are_those_of_github():
    text = "# In place of `open_clip`'s loss\n\n## A [link](x.md), too\n\n## Same\n\n## Same\n"
    text += "```sh\n# no heading\n```\n"
    assert anchors(text) == {"in-place-of-open_clips-loss", "a-link-too", "same", "same-1"}


def test_links_in_code_are_no_links():
    text = "[a](b.md#c) `[d](e)` ![f](g.png)\n\n```text\n[h](i)\n```\n[`x`](j.md)\n"
    assert links(text) == ["b.md#c", "g.png", "j.md"]


@pytest.fixture
def site():
    """A server of two addresses: /there answers, /gone does not exist, /closed refuses programs."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response({"/there": 200, "/closed": 403}.get(self.path, 404))
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_make_links_names_what_is_dead_and_fails(site, capsys):
    assert link_checker.main({f"{site}/there": ["a.md"], f"{site}/closed": ["a.md"]}) == 0
    assert "2 links, 0 dead" in capsys.readouterr().out
    assert link_checker.main({f"{site}/there": ["a.md"], f"{site}/gone": ["b.md", "c.md"]}) == 1
    out = capsys.readouterr().out
    assert re.search(rf"dead \(404\) +{site}/gone  in b.md, c.md", out)
    assert "refused" not in out


def test_make_links_runs_that():
    makefile = Path(ROOT / "Makefile").read_text()
    assert re.search(
        r"^links:.*\n\tcd tests && .*python -m support\.links$", makefile, re.MULTILINE
    )
