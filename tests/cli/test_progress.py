import io
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from keyhole.cli import progress
from keyhole.cli.progress import Bar, build_rows, format_line, print_lines


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(bar: Bar, width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print(build_rows(bar))
    return out.getvalue().splitlines()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bar(clock: Clock) -> Bar:
    """Ten of forty units done in 30 s; an attack at 100 of 3000 iterations after 10 s."""
    bar = Bar(clock)
    bar.begin(40)
    bar.show("clients train")
    bar.advance(10)
    clock.now += 20
    label = "ig(iterations=3000, lr=0.1, labels='given', masks='ignored', mask_weight=0.0001, x=1)"
    bar.show(f"{label} against gaussian, timm:deit_small_patch16_224")
    bar.iterate(0, 3000, "loss 0.5 of the worst victim")
    clock.now += 10
    bar.iterate(100, 3000, "loss 0.4 of the worst victim, and much more that could be said of it")
    return bar


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_time_left_bar_and_count_are_seen_whatever_the_label(bar, width):
    whole, attack = shown(bar, width)
    assert whole.startswith("0:04:50 ")
    assert " 10/40 " in whole
    assert attack.startswith("0:04:50 ")
    assert " 100/3000 " in attack
    assert f" {'━' * 4} " in whole  # a quarter of 16
    assert "ig(" in whole
    assert max(len(whole), len(attack)) <= width
    assert ("…" in whole) == (width < 200)


def test_what_is_complete_of_several_pieces_is_no_number_of_iterations(bar, clock):
    bar.show("2 at work: one 25%, another 75%")
    bar.complete(0.4, "those at work")
    clock.now += 10
    bar.complete(0.5, "those at work")
    assert "50/100 % of those at work" in shown(bar, 100)[1]
    line = format_line(bar)
    assert "; 50% of those at work; " in line
    assert "iteration" not in line


def test_the_whole_never_takes_less_than_the_attack_under_way(bar, clock):
    assert bar.whole.seconds_left() == pytest.approx(90)
    assert bar.seconds_left() == pytest.approx(290)
    clock.now += 1000
    assert bar.whole.seconds_left() == pytest.approx(3090)
    assert bar.seconds_left() == pytest.approx(29290)


def test_what_an_earlier_run_has_done_does_not_count_for_the_pace(clock):
    bar = Bar(clock)
    bar.begin(100)
    bar.advance(90)
    bar.show("the rest")
    assert bar.seconds_left() is None
    clock.now += 10
    bar.advance(1)
    assert bar.seconds_left() == pytest.approx(90)
    taken_up = Bar(clock)
    taken_up.begin(10)
    taken_up.show("clients train")
    clock.now += 7
    taken_up.skip(8)
    taken_up.advance(1)
    assert taken_up.seconds_left() == pytest.approx(7)


def test_a_checkpoint_gives_iterations_no_pace(clock):
    bar = Bar(clock)
    bar.iterate(2000, 3000, "")
    assert bar.attack.seconds_left() is None
    clock.now += 5
    bar.iterate(2500, 3000, "")
    assert bar.attack.seconds_left() == pytest.approx(5)
    bar.iterate(10, 3000, "the next victims")
    assert bar.attack.seconds_left() is None


def test_the_next_piece_begins_at_nought(clock):
    bar = Bar(clock)
    bar.begin(5)
    bar.advance(5)
    bar.begin(7)
    assert (bar.whole.done, bar.whole.total) == (0, 7)


def test_a_log_gets_one_line_with_all_that_matters(bar):
    line = format_line(bar)
    assert "10 of 40 done; iteration 100 of 3000; 0:04:50 left" in line
    assert line.startswith("keyhole: ig(iterations=3000")


def test_a_line_of_work_that_is_all_done_expects_no_more(clock):
    bar = Bar(clock)
    bar.begin(4)
    bar.show("april")
    assert format_line(bar).endswith("0 of 4 done; time left not known yet")
    clock.now += 10
    bar.advance(4)
    assert format_line(bar).endswith("4 of 4 done; finishing up")


def test_without_a_terminal_a_line_comes_at_regular_times(bar, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.02)
    before = set(threading.enumerate())
    with print_lines(bar):
        deadline = time.monotonic() + 10
        err = ""
        while err.count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
            err += capsys.readouterr().err
    assert set(err.splitlines()) == {format_line(bar)}
    assert set(threading.enumerate()) == before


def test_short_work_says_nothing(keyhole):
    code, _, err = keyhole("list")
    assert (code, err) == (0, "")
    assert progress.SECONDS_BETWEEN_LINES == 30


@given(st.text(st.characters(), max_size=60), st.integers(50, 120))
def test_no_label_breaks_the_rows(text, width):
    bar = Bar(Clock())
    bar.begin(3)
    bar.show(text)
    bar.iterate(1, 2, text)
    lines = shown(bar, width)
    assert len(lines) == 2
    assert " 0/3 " in lines[0]
    assert " 1/2 " in lines[1]
    assert "\x1b" not in "".join(lines)


def test_an_audit_tells_of_attack_and_defense_by_their_names(keyhole, monkeypatch):
    told = []
    monkeypatch.setattr(Bar, "show", lambda self, what: told.append(what))
    keyhole(
        *("audit", "--model", "mlp", "--data", "digits", "--attack", "ig(tv=0.5)"),
        *("--victims", "1", "--iterations", "2", "--defense", "gaussian(sigma=0.5)", "--json"),
    )
    assert "ig (naive) against gaussian, mlp" in told
    assert not [what for what in told if "0.5" in what]
