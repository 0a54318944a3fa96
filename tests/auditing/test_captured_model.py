"""What a captured folder says about a lying server and about secure sums, true or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from captures import audited, change_json, manifest
from keyhole.errors import RunFolderError

LIE = {"public-batch-size": 1, "public-steps": 1, "public-clients": 1}


def claim(seen: Path, **about: Any) -> None:
    """Changes what the folder says about its run."""
    change_json(seen / "capture.json", lambda found: found["about"].update(about))


@pytest.mark.parametrize("text", ["os:system", "imprint(bins=0)", "no-attack", "x" * 5000, 7])
def test_an_attack_that_is_not_keyholes_own_changes_nothing(seen: Path, text: Any) -> None:
    claim(seen, attack=text, **LIE)
    result = audited(seen, attacks=("patch-lstsq",))
    assert result.findings[0].knowledge["server"] == "honest but curious"


def test_a_layer_that_is_not_in_the_weights_is_not_built(seen: Path) -> None:
    """It would take a petabyte."""
    claim(seen, attack="loki(bins=65536)", **(LIE | {"public-clients": 10_000_000}))
    with pytest.raises(RunFolderError, match="lacks the layer"):
        audited(seen, attacks=("patch-lstsq",))


def test_every_finding_says_that_the_model_was_altered(seen: Path) -> None:
    claim(seen, attack="fishing", altered_model="a last layer\x1b[31m", **LIE)
    result = audited(seen, attacks=("patch-lstsq",))
    assert result.findings[0].knowledge["server"] == "malicious"
    (note,) = [note for note in result.notes if "altered the model" in note]
    assert "\x1b" not in note


def test_a_sum_whose_images_cannot_be_divided_is_taken_for_one_client(seen: Path) -> None:
    change_json(manifest(seen), lambda found: found["clients"][0].update(clients=2, members="0,1"))
    result = audited(seen, attacks=("patch-lstsq",), nodes="0")
    (finding,) = result.findings
    assert finding.recipe.get("aggregate", 1) == 1
    assert any("not divided equally" in note for note in finding.notes)
