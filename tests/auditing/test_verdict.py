from dataclasses import dataclass
from typing import ClassVar

import pytest

from keyhole import audit
from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.finding import Finding
from keyhole.auditing.verdict import MaliciousVerdict, judge_findings
from keyhole.defenses import Defense
from keyhole.metrics import summarise

GAUSSIAN = {"name": "gaussian", "parameters": {"sigma": 0.1, "clip": None}}


def finding(
    read,
    *,
    attack="linear",
    attacker="naive",
    ssim=0.9,
    reid=0.0,
    altered=None,
    noticed=None,
    labels=None,
    defense=GAUSSIAN,
    **recipe,
):
    metrics = {"labels": summarise([labels], worst_is_high=True)} if labels is not None else {}
    if read is not None:
        metrics["read"] = summarise(read, worst_is_high=True)
        metrics["ssim"] = summarise([ssim] * len(read), worst_is_high=True)
        metrics["reid"] = summarise([reid] * len(read), worst_is_high=True)
    server = "malicious" if altered else "honest but curious"
    return Finding(
        key=f"{attack}-{attacker}",
        model="mlp",
        data="faces",
        defense=defense,
        attacker=attacker,
        attack=attack,
        attack_parameters={},
        knowledge={"altered_model": altered, "server": server},
        victims=4,
        seconds=1.0,
        metrics=metrics,
        recipe={"gallery": 100, **recipe},
        reads_images=read is not None,
        noticed=noticed,
    )


def test_the_worst_attacker_wins():
    (verdict,) = judge_findings([finding([0, 0, 0, 0]), finding([0, 1, 1, 0], attacker="adaptive")])
    assert verdict.status == "broken"
    assert verdict.by == "linear (adaptive)"
    assert verdict.words == "broken by linear (adaptive): 2 of 4 images read"
    assert verdict.tried == ("linear (naive)", "linear (adaptive)")
    assert verdict.missing == ("paper",)


def test_one_image_is_enough_to_break():
    assert judge_findings([finding([0] * 99 + [1])])[0].status == "broken"


def test_nothing_is_ever_called_safe():
    (verdict,) = judge_findings([finding([0, 0])])
    assert verdict.status == "not broken"
    assert verdict.by is None
    assert verdict.words == "not broken by the attacks tried: linear (naive)"


def test_attacks_that_look_for_no_images_are_no_reason_for_not_broken():
    (verdict,) = judge_findings([finding([0, 0]), finding(None, attack="labels", labels=1.0)])
    assert verdict.words == "not broken by the attacks tried: linear (naive)"
    assert verdict.tried == ("linear (naive)", "labels (naive)")


def test_a_reconstruction_that_still_points_to_its_original_is_told_of():
    (verdict,) = judge_findings([finding([0, 0], reid=1.0)])
    assert verdict.status == "not broken"
    assert verdict.words.endswith(
        "yet what linear (naive) saw points to the right image among 100 in 2 of 2 cases"
    )


def test_of_equals_the_one_who_needed_least_is_named():
    knows, naive = finding([1, 1], attacker="adaptive", ssim=1.0), finding([1, 1], ssim=0.8)
    malicious = finding([1, 1], attack="april", altered="block 0")
    assert judge_findings([malicious, knows, naive])[0].by == "linear (naive)"


def test_a_malicious_server_is_named():
    (verdict,) = judge_findings([finding([1], attack="april", altered="block 0")])
    assert verdict.server == "malicious"
    assert "alters the model" in verdict.words
    assert (verdict.status, verdict.by, verdict.read) == ("broken", "april (naive)", 1.0)
    assert verdict.malicious == MaliciousVerdict(
        status="broken",
        by="april (naive)",
        read=1.0,
        changed="block 0",
        tried=("april (naive)",),
        words="broken by april (naive): 1 of 1 images read",
        alone=True,
    )
    (line,) = verdict.lines
    assert (line.status, line.changed) == ("broken", "block 0")
    assert str(line) == (
        "malicious server (changes the model: block 0): broken by april (naive): 1 of 1 images "
        "read; only a server that alters the model was tried, no honest one"
    )


def test_what_a_malicious_server_alone_breaks_is_said_apart():
    (verdict,) = judge_findings(
        [
            finding([0, 0]),
            finding([1, 0], attack="imprint", altered="a layer in front"),
            finding([0, 0], attack="trap-weights", altered="rows that rarely fire"),
        ]
    )
    assert (verdict.status, verdict.by, verdict.read) == ("not broken", None, 0.0)
    assert (verdict.server, verdict.tried) == (None, ("linear (naive)",))
    assert verdict.words == "not broken by the attacks tried: linear (naive)"
    malicious = verdict.malicious
    assert malicious is not None
    assert (malicious.status, malicious.by, malicious.read) == ("broken", "imprint (naive)", 0.5)
    assert (malicious.changed, malicious.alone) == ("a layer in front", False)
    assert malicious.tried == ("imprint (naive)", "trap-weights (naive)")
    assert [str(line) for line in verdict.lines] == [
        "honest server: not broken by the attacks tried: linear (naive)",
        "malicious server (changes the model: a layer in front): broken by imprint (naive): 1 of 2 "
        "images read",
    ]
    assert list(verdict.by_server) == ["honest", "malicious"]


def test_an_honest_server_that_reads_less_keeps_its_own_verdict():
    (verdict,) = judge_findings(
        [finding([1, 0, 0, 0]), finding([1, 1, 1, 1], attack="imprint", altered="a layer")]
    )
    assert (verdict.by, verdict.server) == ("linear (naive)", "honest but curious")
    assert verdict.words == "broken by linear (naive): 1 of 4 images read"
    assert verdict.read == 0.25
    assert verdict.malicious is not None
    assert verdict.malicious.read == 1.0


def test_a_malicious_server_that_read_nothing_is_named_with_all_its_changes():
    altered = [
        finding([0], attack="imprint", altered="a layer"),
        finding([0], attack="imprint", attacker="adaptive", altered="a layer"),
        finding([0], attack="trap-weights", altered="rows"),
    ]
    (verdict,) = judge_findings([finding([1]), *altered])
    assert verdict.status == "broken"
    malicious = verdict.malicious
    assert malicious is not None
    assert (malicious.status, malicious.by, malicious.read) == ("not broken", None, 0.0)
    assert malicious.changed == "a layer; rows"
    assert malicious.words == (
        "not broken by the attacks tried: imprint (naive), imprint (adaptive), trap-weights (naive)"
    )


def test_without_attacks_by_a_malicious_server_the_verdict_is_one_line():
    (verdict,) = judge_findings([finding([1])])
    assert verdict.malicious is None
    assert [str(line) for line in verdict.lines] == [verdict.words]
    assert list(verdict.by_server) == ["honest"]


def test_an_attack_on_labels_is_no_honest_server_that_looked_for_images():
    labels = finding(None, attack="labels", labels=1.0)
    (verdict,) = judge_findings([labels, finding([1], attack="april", altered="block 0")])
    assert (verdict.status, verdict.server, verdict.labels) == ("broken", "malicious", 1.0)
    assert verdict.tried == ("labels (naive)", "april (naive)")
    assert verdict.malicious is not None
    assert verdict.malicious.alone
    assert verdict.malicious.tried == ("april (naive)",)


def test_kinds_of_attacker_that_only_a_malicious_server_was_are_missing():
    adaptive = finding([1], attack="imprint", attacker="adaptive", altered="a layer")
    (verdict,) = judge_findings([finding([1]), adaptive])
    assert verdict.missing == ("paper", "adaptive")


@pytest.mark.parametrize(
    ("noticed", "words"),
    [
        (None, ""),
        (True, "; keyhole guard --incoming would have noticed the change"),
        (False, "; keyhole guard --incoming would not have noticed the change"),
    ],
)
def test_whether_a_client_would_have_noticed_is_said_where_it_was_checked(noticed, words):
    worst = finding([1, 1], attack="imprint", altered="a layer", noticed=noticed)
    other = finding([1, 0], attack="trap-weights", altered="rows", noticed=not noticed)
    (verdict,) = judge_findings([finding([0, 0]), other, worst])
    assert verdict.malicious is not None
    assert verdict.malicious.noticed is noticed
    assert verdict.malicious.words == f"broken by imprint (naive): 2 of 2 images read{words}"


def test_no_check_of_several_changes_counts_unless_all_were_checked():
    def judge(*noticed):
        (verdict,) = judge_findings(
            [finding([0], attack="imprint", altered="a layer", noticed=n) for n in noticed]
        )
        assert verdict.malicious is not None
        return verdict.malicious.noticed

    assert judge(True, True) is True
    assert judge(True, False) is False
    assert judge(True, None) is None


def test_labels_alone_test_nothing():
    (verdict,) = judge_findings([finding(None, attack="labels", labels=1.0)])
    assert (verdict.status, verdict.labels, verdict.read) == ("not tested", 1.0, None)
    assert verdict.words == (
        "not tested: only labels (naive) was run, which does not look for images; name one with "
        "--attack, or leave --attack out"
    )


def test_what_was_not_tested_says_why_and_how_to_ask_for_it():
    why = "a client trained on 600 images: iterative attacks are tried only if named"
    (verdict,) = judge_findings([finding(None, attack="labels", labels=1.0, left_out=[why])])
    assert verdict.words.endswith(why)
    refused = Skipped("ig", "mlp", "gaussian(sigma=0.1)", "it does not fit", "faces")
    (verdict,) = judge_findings([finding(None, attack="labels", labels=1.0)], [refused])
    assert "ig could not be used here" in verdict.words


def test_labels_without_truth_test_nothing_either():
    (verdict,) = judge_findings([finding(None, attack="labels", scored=False)])
    assert verdict.status == "not tested"


def test_a_setting_in_which_every_attack_was_skipped_is_not_tested():
    refused = Skipped("linear", "lenet", "dropout(p=0.5)", "its first layer is a convolution", "x")
    done, verdict = judge_findings([finding([1])], [refused])
    assert (done.status, verdict.status, verdict.model) == ("broken", "not tested", "lenet")
    assert verdict.defense["parameters"]["p"] == 0.5
    assert "first layer is a convolution" in verdict.words


def test_a_setting_with_findings_gets_no_second_verdict_by_what_was_skipped():
    refused = Skipped("ig", "mlp", "gaussian(sigma=0.1)", "why", "faces")
    assert len(judge_findings([finding([1])], [refused])) == 1


def test_of_an_older_folder_the_skipped_attacks_make_no_verdict():
    refused = Skipped("linear", "lenet", "none", "why")
    assert [v.status for v in judge_findings([finding([1])], [refused])] == ["broken"]


def test_where_no_defense_was_in_place_not_broken_tells_of_the_attacks():
    none = {"name": "none", "parameters": {}}
    (verdict,) = judge_findings([finding([0, 0], defense=none)])
    assert verdict.status == "not broken"
    assert "no defense was in place, so this says that these attacks are weak" in verdict.words
    (captured,) = judge_findings([finding([0, 0], defense=none, captured="folder")])
    assert "no defense is known of, so this says that these attacks are weak" in captured.words
    assert "weak" not in judge_findings([finding([0, 0])])[0].words
    assert "weak" not in judge_findings([finding([0, 1], defense=none)])[0].words


@dataclass(frozen=True)
class Own(Defense):
    """A defense that no registry knows."""

    name: ClassVar[str] = "own"
    summary: ClassVar[str] = "does nothing"
    strength: float = 0.5


@pytest.mark.parametrize(
    ("attacks", "status"), [(["linear", "labels"], "not tested"), (["linear", "ig"], "not broken")]
)
def test_a_defense_of_ones_own_gets_one_verdict_although_an_attack_was_skipped(attacks, status):
    result = audit(
        model="lenet", data="digits", defenses=[Own()], attacks=attacks, victims=1, iterations=1
    )
    (verdict,) = result.verdicts
    assert (verdict.status, verdict.defense["name"]) == (status, "own")
    assert [each.attack for each in result.skipped] == ["linear"]


def test_a_defense_of_ones_own_that_no_attack_met_goes_by_its_text():
    refused = Skipped("linear", "lenet", "own(strength=0.5)", "why", "faces")
    (verdict,) = judge_findings([], [refused])
    assert (verdict.status, verdict.defense["name"]) == ("not tested", "own(strength=0.5)")
