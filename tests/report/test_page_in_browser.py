import re

import pytest

from browsers import launch_browser, needs_chromium, open_file
from keyhole.auditing import MembershipPlan, Plan, Stage, infer_membership, run_plan
from keyhole.report import membership_page, write

TITLE = 'In a browser <img src=x onerror="window.foreign=1"><script>window.foreign=1</script>'
"""A name as an attacker would choose it."""
DECODED = "image => (image.loading = 'eager', image.decode())"
"""Waits for a picture; a picture that cannot be shown is an error. (The page's policy forbids the
polling of ``wait_for_function``.)"""
A4 = {"width": 703, "height": 1009}
"""What the margins leave of a page of 210 x 297 mm, in CSS pixels."""

pytestmark = needs_chromium


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
    return f"file://{write(result, title=TITLE)}"


@pytest.fixture(scope="module")
def browser():
    with launch_browser() as chromium:
        yield chromium


@pytest.fixture
def page(browser, address):
    page = open_file(browser, address.removeprefix("file://"))
    yield page
    page.close()


def test_the_page_opens_without_errors_or_requests(page):
    page.wait_for_load_state("networkidle")
    assert page.problems == []
    assert page.title().startswith(TITLE)


def test_originals_and_reconstructions_stand_side_by_side_large_enough_to_judge(page):
    pair = page.locator(".row .pair").first
    pair.scroll_into_view_if_needed()
    page.evaluate(f"Promise.all([...document.querySelectorAll('.row .pair img')].map({DECODED}))")
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
    page.evaluate(f"Promise.all([...document.querySelectorAll('.film img')].map({DECODED}))")
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


@pytest.mark.parametrize("width", [400, 1200])
def test_the_membership_page_opens_without_errors_and_fits(browser, tmp_path, width):
    plan = MembershipPlan(model="mlp", members=20, public=40, epochs=1, attacks=("loss",))
    file = membership_page.write(infer_membership(plan, out=tmp_path))
    page = browser.new_page(viewport={"width": width, "height": 900})
    problems = []
    page.on("console", lambda m: problems.append(m.text))
    page.goto(f"file://{file}")
    assert problems == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".roc svg").bounding_box()["width"] > 250
    page.close()


def test_a_name_is_text_whatever_is_in_it(page):
    assert page.locator("h1").text_content() == TITLE
    assert page.evaluate("window.foreign") is None


FOREIGN = """
<img src="x" onerror="window.foreign = 1"><script>window.foreign = 2</script>
<p id="styled" style="color: rgb(1, 2, 3)">styled</p><style>#styled { color: rgb(1, 2, 3) }</style>
<a id="link" href="javascript:window.foreign = 3">link</a><iframe src="https://127.0.0.1"></iframe>
<img src="https://127.0.0.1/x.png"><form action="https://127.0.0.1"><button id="send"></form>
"""


def test_what_would_slip_past_the_escaping_neither_runs_nor_asks_nor_styles(
    browser, address, tmp_path
):
    with open(address.removeprefix("file://"), encoding="utf-8") as file:
        made = file.read()
    hostile = tmp_path / "hostile.html"
    hostile.write_text(made.replace("</header>", f"</header>{FOREIGN}", 1), encoding="utf-8")
    page = browser.new_page()
    refused, sent = [], []
    page.on("console", lambda m: refused.append(m.text) if m.type == "error" else None)
    page.on("requestfinished", lambda r: sent.append(r.url) if r.url.startswith("http") else None)
    page.goto(f"file://{hostile}")
    page.click("#link")
    page.wait_for_timeout(100)
    assert page.evaluate("window.foreign") is None
    colour = "getComputedStyle(document.getElementById('styled')).color"
    assert page.evaluate(colour) != "rgb(1, 2, 3)"
    assert sent == []
    for kind in ("img-src", "script-src", "style-src", "default-src"):
        assert any(kind in text for text in refused), (kind, refused)
    page.close()


def test_nothing_is_cut_off_on_paper(page):
    page.emulate_media(media="print")
    page.set_viewport_size(A4)
    assert page.locator(".scroll table").count() >= 3
    cut = page.evaluate(
        """width => [...document.body.querySelectorAll("*")].filter(e => {
          const box = e.getBoundingClientRect();
          const cell = e.matches("td, th, .scroll, .plot, .heat");
          return box.left < -1 || box.right > width + 1
              || (cell && e.scrollWidth > e.clientWidth + 1);
        }).map(e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`)""",
        A4["width"],
    )
    assert cut == []


def test_the_first_page_says_what_was_found_and_what_to_do_and_few_follow(page):
    page.emulate_media(media="print")
    page.set_viewport_size(A4)
    settings = page.locator(".summary")
    assert settings.is_visible()
    assert settings.locator("tbody tr").count() == 5
    for first in (".executive", ".advice"):
        box = page.locator(first).bounding_box()
        assert box["y"] + box["height"] < A4["height"]
    assert pages_of(page.pdf(prefer_css_page_size=True)) <= 7
    page.emulate_media(media="screen")
    assert not settings.is_visible()


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


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
