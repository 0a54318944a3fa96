from __future__ import annotations

import re

import pytest

from keyhole.report import shell
from keyhole.report.figures import plot_losses, render_svg
from keyhole.report.shell import build_policy, fill_template, hash_source


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> str:
    """A page of the common frame alone."""
    text_of = shell.read_asset
    own = '{% extends "shell.html.j2" %}{% block body %}<p>{{ words }}</p>{% endblock %}'
    monkeypatch.setattr(shell, "read_asset", lambda name: own if name == "own" else text_of(name))
    return fill_template("own", title="<b>", words='"><script>alert(1)</script>')


def test_the_policy_names_the_one_style_and_the_one_script_by_their_hashes(page: str) -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    meta = 'http-equiv="Content-Security-Policy" content="'
    start = page.index(meta) + len(meta)
    told = page[start : page.index('">', start)].replace("&#39;", "'")
    assert told == build_policy(style, script)
    assert told.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert f"script-src {hash_source(script)}" in told
    assert "unsafe" not in told
    assert page.index(meta) < page.index("<style>")


def test_every_value_is_escaped(page: str) -> None:
    assert "&lt;b&gt; – Keyhole" in page
    assert "alert(1)&lt;/script&gt;" in page


def test_drawings_need_no_style_of_their_own() -> None:
    drawings = [
        plot_losses([[(1, 1.0), (50, 0.1)]]),
        render_svg(lambda figure: figure.subplots().plot([1, 2], label="a"), size=(2, 2)),
    ]
    for svg in drawings:
        assert "style" not in svg
        assert 'stroke="currentColor"' in svg
        assert 'font-size="' in svg
        assert 'text-anchor="middle"' in svg
