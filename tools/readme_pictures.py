"""Draws README's pictures from a run of the tour: ``python tools/readme_pictures.py runs/tour``.

``tour.png`` is one photo beside what the best attacker recovered of it under each defense, and
``report.png`` the first screen of the run's report. Needs Chromium and the extra ``dev``.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from keyhole.auditing import AuditResult, Finding, label_defense
from keyhole.errors import BadValue
from keyhole.report import write

PICTURES = Path(__file__).parents[1] / "docs" / "img"
MODEL = "timm:deit_small_patch16_224"
ATTACK = "patch-lstsq"
VICTIM = 0
FLAGS = ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb"]
STYLE = """
body { margin: 0; background: #fff; font: 15px/1.35 system-ui, sans-serif; color: #1d2129; }
#strip { display: flex; gap: 12px; padding: 4px; width: max-content; }
figure { margin: 0; width: 150px; }
img { display: block; width: 150px; height: 150px; border-radius: 6px; }
figcaption { margin-top: 6px; overflow-wrap: anywhere; }
b { display: block; font-weight: 600; }
.read { color: #b3261e; } .unread { color: #2e7d4f; }
"""


def choose_best(findings: Sequence[Finding]) -> Finding:
    """The finding of the attacker who read most; of equals, of the one who saw most.

    Args:
        findings: Those of one setting.
    """
    return max(findings, key=lambda f: (f.metrics["read"].mean, f.metrics["ssim"].mean))


def embed(pixels: Tensor) -> str:
    """A picture as an address that a page can hold.

    Args:
        pixels: Bytes, [channels, height, width].
    """
    file = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def render_strip(result: AuditResult) -> str:
    """The page of the first picture: the original, then a column for each defense.

    Args:
        result: A run of the tour, with its folder.
    """
    settings: dict[str, list[Finding]] = {}
    for finding in result.findings:
        if (finding.model, finding.attack) == (MODEL, ATTACK):
            settings.setdefault(label_defense(finding.defense), []).append(finding)
    if not settings or result.store is None:
        raise BadValue("this is no run of the tour: make one with `keyhole audit --out runs/tour`")
    best = {name: choose_best(findings) for name, findings in settings.items()}
    original = result.store.pictures(next(iter(best.values())).key)["truth"][VICTIM]
    columns = [f'<figure><img src="{embed(original)}"><figcaption><b>original</b></figcaption>']
    for name, finding in best.items():
        seen = result.store.pictures(finding.key)["seen"][VICTIM]
        read = finding.metrics["read"]
        count = round(sum(read.per_image))
        words = f"{count} of {len(read.per_image)} read"
        title = "no defense" if name == "none" else name.replace("(", "\n(")
        columns.append(
            f'<figure><img src="{embed(seen)}"><figcaption><b>{html.escape(title)}</b>'
            f'<span class="{"read" if count else "unread"}">{words}</span></figcaption>'
        )
    strip = "</figure>".join(columns)
    return f'<!doctype html><style>{STYLE}</style><div id="strip">{strip}</figure></div>'


def draw(result: AuditResult, folder: Path) -> list[Path]:
    """Writes both pictures; returns their files.

    Args:
        result: A run of the tour, with its folder.
        folder: Where to.
    """
    from playwright.sync_api import sync_playwright

    strip, report = folder / "tour.png", folder / "report.png"
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        page: Any = browser.new_page(device_scale_factor=1.5)
        page.set_content(render_strip(result))
        page.locator("#strip").screenshot(path=strip)
        page.close()
        page = browser.new_page(viewport={"width": 1120, "height": 800}, device_scale_factor=1.5)
        page.goto(Path(write(result)).resolve().as_uri())
        box = page.locator("#summary").bounding_box()
        clip = {"x": 0, "y": 0, "width": 1120, "height": box["y"] + box["height"] + 24}
        page.screenshot(path=report, clip=clip, full_page=True)
        browser.close()
    for file in (strip, report):
        Image.open(file).convert("P", palette=Image.Palette.ADAPTIVE).save(file, optimize=True)
    return [strip, report]


def main(arguments: Sequence[str] | None = None) -> None:
    """Draws the pictures of the run that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("run", type=Path, help="a run folder of the tour", metavar="RUN")
    for file in draw(AuditResult.load(parser.parse_args(arguments).run), PICTURES):
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
