import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_examples_run_and_read_the_images(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})
    printed = capsys.readouterr().out
    assert "none broken by linear (naive): 4 of 4 images read" in printed
    assert float(re.search(r"tensor\(\[([\d.]+)\]", printed).group(1)) > 40


def test_the_plan_in_the_readme_is_a_plan(tmp_path):
    from keyhole.audit import read_plan

    (text,) = re.findall(r"```toml\n(.*?)```", README, re.S)
    (tmp_path / "plan.toml").write_text(text)
    assert read_plan(tmp_path / "plan.toml").stage[0].model == "vit-small"


@pytest.mark.parametrize("file", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]))
def test_links_lead_somewhere(file):
    for target in re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (file.parent / target).exists(), target
