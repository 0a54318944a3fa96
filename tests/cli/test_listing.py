import json

import pytest

from keyhole.report.catalogue import build_catalogue

ROOMS = ("attacks", "membership", "defenses", "models", "data", "metrics")


def test_the_list_is_words_and_no_python(keyhole, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = keyhole("list")
    assert code == 0
    assert not set("{}'") & set(out.replace("'s", "").replace("s' ", ""))
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize("room", ROOMS)
def test_one_part_is_listed_by_its_name(keyhole, room):
    code, out, _ = keyhole("list", room)
    assert code == 0
    assert all(entry["name"] in out for entry in build_catalogue()[room])
    assert [line for line in out.splitlines() if line in ROOMS] == [room]
    whole = json.loads(keyhole("list", "--json")[1])
    assert json.loads(keyhole("list", room, "--json")[1]) == {room: whole[room]}


@pytest.mark.parametrize(
    ("room", "name"),
    [(room, e["name"]) for room, entries in build_catalogue().items() for e in entries],
)
def test_every_entry_is_told_in_words(keyhole, monkeypatch, room, name):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = keyhole("list", room, name)
    assert code == 0
    entry = next(e for e in build_catalogue()[room] if e["name"] == name)
    assert out.startswith(f"{name}: {entry['summary']}")
    assert ">>>" not in out
    assert "``" not in out
    for parameter, value in entry.get("parameters", {}).items():
        assert f"{parameter}={value!r}" in out
    detailed = json.loads(keyhole("list", room, name, "--json")[1])
    assert set(entry) <= set(detailed)
    assert set(detailed.get("allowed", ())) == set(entry.get("parameters", ()))


def test_a_defense_tells_what_its_parameters_mean_and_may_be(keyhole):
    out = keyhole("list", "defenses", "gaussian(sigma=0.5)")[1]
    assert "adds N(0, sigma^2)" in out
    assert "clip=None" in out
    assert "a number above 0, or None" in out


def test_models_of_a_family_are_told_by_the_family(keyhole):
    assert keyhole("list", "models", "timm:resnet18")[1].startswith("timm:NAME")
    own = keyhole("list", "models", "my.module:build")[1]
    assert own.startswith("package.module:callable")
    assert "(height, width)" in " ".join(own.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("attcks",), "did you mean attacks"),
        (("attacks", "iig"), "did you mean wiig or ig"),
        (("defenses", "gausian"), "did you mean gaussian"),
        (("gaussian",), "write `keyhole list defenses gaussian`"),
        (("data", "mnst"), "did you mean mnist"),
        (("models", "mpl"), "did you mean mlp"),
    ],
)
def test_an_unknown_name_gets_one_line(keyhole, arguments, words):
    code, out, err = keyhole("list", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
