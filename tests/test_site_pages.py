"""What stands on the site's pages for newcomers works as it is printed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts import ROOT, load_script
from source_code import LIBRARY

DOCS = ROOT / "docs"
Run = Callable[..., tuple[int, str, str]]
PAGES = sorted(
    file.relative_to(DOCS).as_posix()
    for file in DOCS.rglob("*.md")
    if not file.is_relative_to(DOCS / "_build")
)
OWN_MODULES = ("my_model", "my_attack", "my_defense")


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def code_blocks(name: str, language: str = "python") -> list[str]:
    blocks = re.findall(r"^```(\S*).*?\n(.*?)^```$", read(name), re.S | re.M)
    return [text for of, text in blocks if of == language]


def commands(name: str) -> list[str]:
    """The lines of a page that call ``keyhole``, without what tells the version."""
    lines = "".join(code_blocks(name, "")).splitlines()
    return [line[8:] for line in lines if line.startswith("keyhole ") and "--version" not in line]


@pytest.fixture
def own_folder(tmp_path: Path, keyhole: Run) -> Iterator[Path]:
    """The folder of a user who saved each page's first example under the name it says."""
    for name in OWN_MODULES:
        (tmp_path / f"{name}.py").write_text(code_blocks(f"howto/{name}.md")[0])
    yield tmp_path
    for name in OWN_MODULES:
        sys.modules.pop(name, None)


def test_the_first_ten_minutes_say_what_is_printed(keyhole: Run) -> None:
    audit, train, captured, gated = commands("start.md")
    code, out, _ = keyhole(*shlex.split(audit))
    assert code == 0
    (verdicts,) = code_blocks("start.md", "text")
    assert all(line in out for line in verdicts.splitlines())
    assert Path("runs/demo/report.html").is_file()
    for seen in re.findall(r"at\s+([\d.]+) dB\.", read("start.md")):
        assert seen in out
    assert keyhole(*shlex.split(train))[0] == 0
    _, out, _ = keyhole(*shlex.split(captured))
    assert "none: broken by patch-lstsq (naive): 4 of 4 images read" in out
    assert " 93." in out
    assert keyhole(*shlex.split(gated))[0] == 3


def test_a_model_of_ones_own_is_audited_as_the_page_says(
    keyhole: Run,
    own_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(own_folder)
    random, trained = commands("howto/my_model.md")
    _, save, in_python = code_blocks("howto/my_model.md")
    assert "2 of 2 images read" in keyhole(*shlex.split(random))[1]
    exec(save, {})
    assert "2 of 2 images read" in keyhole(*shlex.split(trained))[1]
    exec(in_python, {})
    assert "2 of 2 images read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "verdict"),
    [
        ("my_attack", "none: broken by my-attack (naive): 2 of 2 images read"),
        ("my_defense", "my-defense(share=0.3): broken by linear (naive): 2 of 2 images read"),
    ],
)
def test_a_part_of_ones_own_is_used_as_the_page_says(
    keyhole: Run, own_folder: Path, page: str, verdict: str
) -> None:
    (command,) = commands(f"howto/{page}.md")
    code, out, _ = keyhole(*shlex.split(command))
    assert code == 0
    assert verdict in out


def test_the_page_on_plans_has_a_plan_that_runs(keyhole: Run, tmp_path: Path) -> None:
    (text,) = code_blocks("reference/plan.md", "toml")
    (tmp_path / "plan.toml").write_text(text)
    code, out, _ = keyhole("audit", "plan.toml", "--out", "run")
    assert code == 0
    assert "none: broken by linear (naive): 2 of 2 images read" in out


def menu() -> list[str]:
    """The pages that the menu names."""
    entries = "\n".join(re.findall(r"^```{toctree}\n(.*?)^```", read("index.md"), re.S | re.M))
    return [f"{name}.md" for name in re.findall(r"<(.+)>$", entries, re.M)]


def test_every_page_stands_in_the_menu_once() -> None:
    assert sorted([*menu(), "index.md"]) == PAGES


def test_the_api_page_names_every_public_name_of_the_package() -> None:
    import keyhole

    text = read("reference/api.md")
    rooms = {name for name in keyhole.__all__ if (LIBRARY / name).is_dir()}
    named = set(re.findall(r"auto\w+:: keyhole\.(\w+)", text))
    assert set(keyhole.__all__) - {"__version__"} <= named | {"auditing"}
    assert rooms - {"auditing"} <= set(re.findall(r"automodule:: keyhole\.(\w+)", text))


@pytest.mark.parametrize("page", [page for page in PAGES if "/" in page])
def test_links_of_inner_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", read(page)):
        assert (DOCS / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize(
    ("link", "led"),
    [
        ("[x](acted.md)", "[x](/acted.md)"),
        ("[x](acted.md#y)", "[x](/acted.md#y)"),
        ("[the\nfile](../examples/ci/plan.toml)", "the\nfile (`examples/ci/plan.toml`)"),
        ("[x](../examples/flower/README.md)", "[x](/howto/my_flower_app.md)"),
        ("![x](img/tour.png)", "![x](img/tour.png)"),
        ("[x](no_such_page.md) [y](https://a.b)", "[x](no_such_page.md) [y](https://a.b)"),
    ],
)
def test_links_to_files_of_the_repository_work_in_the_site(
    link: str, led: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_script("docs/conf.py").lead_within_site(link, DOCS) == led
