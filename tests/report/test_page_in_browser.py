import shutil

import pytest

from keyhole.audit import Plan, Stage, run_plan
from keyhole.report import write

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    plan = Plan(
        stage=(
            Stage(
                data="faces",
                defenses=("none", *(f"gaussian(sigma={s})" for s in (0.001, 0.01, 0.1))),
                attacks=("linear",),
                victims=2,
            ),
            Stage(data="digits", defenses=("dropout",), attacks=("ig",), victims=3, iterations=450),
        )
    )
    result = run_plan(plan, out=tmp_path_factory.mktemp("run"))
    return f"file://{write(result, title='In a browser')}"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.on(
        "request",
        lambda r: page.problems.append(r.url) if r.url.startswith(("http", "ws")) else None,
    )
    page.goto(address)
    yield page
    page.close()


def test_the_page_opens_without_errors_or_requests(page):
    page.wait_for_load_state("networkidle")
    assert page.problems == []
    assert page.title().startswith("In a browser")


def test_originals_and_reconstructions_stand_side_by_side_large_enough_to_judge(page):
    pair = page.locator(".row .pair").first
    pair.scroll_into_view_if_needed()
    page.wait_for_function(
        "[...document.querySelector('.row .pair').querySelectorAll('img')]"
        ".every(image => image.complete && image.naturalWidth > 0)"
    )
    original, seen = (pair.locator("img").nth(i).bounding_box() for i in (0, 1))
    assert original["width"] >= 120
    assert original["y"] == pytest.approx(seen["y"], abs=1)
    assert seen["x"] >= original["x"] + original["width"]


def test_the_page_does_not_scroll_sideways_on_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [400, 1280])
def test_every_film_is_seen_as_a_whole_beside_or_above_its_loss_curve(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    assert page.locator(".film").count() == 3
    for i in range(3):
        page.locator(".film").nth(i).scroll_into_view_if_needed()
    page.wait_for_function(
        "[...document.querySelectorAll('.film img')]"
        ".every(image => image.complete && image.naturalWidth > 0)"
    )
    boxes = page.evaluate(
        "[...document.querySelectorAll('.film img, .curve svg')]"
        ".map(e => e.getBoundingClientRect()).map(b => [b.left, b.right, b.width, b.height])"
    )
    assert len(boxes) == 3 * 5 + 1
    for left, right, across, down in boxes:
        assert 0 <= left < right <= width
        assert across >= 24
        assert down >= 24
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(page, scheme):
    page.emulate_media(color_scheme=scheme)
    assert contrast(page) >= 7


def test_the_button_changes_the_theme(page):
    page.emulate_media(color_scheme="light")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert contrast(page) >= 7


def contrast(page) -> float:
    """WCAG contrast of body text against its background."""
    colours = page.evaluate(
        "['color', 'backgroundColor'].map(k => getComputedStyle(document.body)[k])"
    )

    def luminance(colour: str) -> float:
        values = [int(v) / 255 for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(luminance(c) for c in colours)
    return (high + 0.05) / (low + 0.05)
