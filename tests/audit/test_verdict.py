from keyhole.audit.finding import Finding
from keyhole.audit.verdict import verdicts
from keyhole.metrics import summarise

GAUSSIAN = {"name": "gaussian", "parameters": {"sigma": 0.1}}


def finding(
    read, *, attack="linear", attacker="naive", ssim=0.9, reid=0.0, altered=None, labels=None
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
        defense=GAUSSIAN,
        attacker=attacker,
        attack=attack,
        attack_parameters={},
        knowledge={"altered_model": altered, "server": server},
        victims=4,
        seconds=1.0,
        metrics=metrics,
        recipe={"gallery": 100},
    )


def test_the_worst_attacker_wins():
    (verdict,) = verdicts([finding([0, 0, 0, 0]), finding([0, 1, 1, 0], attacker="adaptive")])
    assert verdict.status == "broken"
    assert verdict.by == "linear (adaptive)"
    assert verdict.words == "broken by linear (adaptive): 2 of 4 images read"
    assert verdict.tried == ("linear (naive)", "linear (adaptive)")
    assert verdict.missing == ("paper",)


def test_one_image_is_enough_to_break():
    assert verdicts([finding([0] * 99 + [1])])[0].status == "broken"


def test_nothing_is_ever_called_safe():
    (verdict,) = verdicts([finding([0, 0])])
    assert verdict.status == "not broken"
    assert verdict.by is None
    assert verdict.words == "not broken by the attacks tried: linear (naive)"


def test_a_reconstruction_that_still_points_to_its_original_is_told_of():
    (verdict,) = verdicts([finding([0, 0], reid=1.0)])
    assert verdict.status == "not broken"
    assert verdict.words.endswith(
        "yet what linear (naive) saw points to the right image among 100 in 2 of 2 cases"
    )


def test_of_equals_the_one_who_needed_least_is_named():
    knows, naive = finding([1, 1], attacker="adaptive", ssim=1.0), finding([1, 1], ssim=0.8)
    malicious = finding([1, 1], attack="april", altered="block 0")
    assert verdicts([malicious, knows, naive])[0].by == "linear (naive)"


def test_a_malicious_server_is_named():
    (verdict,) = verdicts([finding([1], attack="april", altered="block 0")])
    assert verdict.server == "malicious"
    assert "alters the model" in verdict.words


def test_labels_are_reported_beside_the_verdict_on_images():
    (verdict,) = verdicts([finding(None, attack="labels", labels=1.0)])
    assert (verdict.status, verdict.labels) == ("not broken", 1.0)
    assert "none of them reads images" in verdict.words
