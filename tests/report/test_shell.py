from __future__ import annotations

import re

import pytest

from keyhole.report import shell
from keyhole.report.figures import as_svg, loss_plot
from keyhole.report.shell import fill_template, policy, source


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> str:
    """A page of the common frame alone."""
    text_of = shell.text_of
    own = '{% extends "shell.html.j2" %}{% block body %}<p>{{ words }}</p>{% endblock %}'
    monkeypatch.setattr(shell, "text_of", lambda name: own if name == "own" else text_of(name))
    return fill_template("own", title="<b>", words='"><script>alert(1)</script>')


def test_the_policy_names_the_one_style_and_the_one_script_by_their_hashes(page: str) -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    meta = 'http-equiv="Content-Security-Policy" content="'
    start = page.index(meta) + len(meta)
    told = page[start : page.index('">', start)].replace("&#39;", "'")
    assert told == policy(style, script)
    assert told.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert f"script-src {source(script)}" in told
    assert "unsafe" not in told
    assert page.index(meta) < page.index("<style>")


def test_every_value_is_escaped(page: str) -> None:
    assert "&lt;b&gt; – Keyhole" in page
    assert "alert(1)&lt;/script&gt;" in page


def test_drawings_need_no_style_of_their_own() -> None:
    drawings = [
        loss_plot([[(1, 1.0), (50, 0.1)]]),
        as_svg(lambda figure: figure.subplots().plot([1, 2], label="a"), size=(2, 2)),
    ]
    for svg in drawings:
        assert "style" not in svg
        assert 'stroke="currentColor"' in svg
        assert 'font-size="' in svg
        assert 'text-anchor="middle"' in svg
