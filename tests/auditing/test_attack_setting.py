import dataclasses

import pytest
import torch

import keyhole
from keyhole.auditing.attack_setting import AttackSetting, build_settings, check_any_applies
from keyhole.auditing.plan import Stage
from keyhole.auditing.resolve import ResolvedStage, resolve_stage
from keyhole.errors import DoesNotFit


def settings_of(*stages: Stage | ResolvedStage) -> list[AttackSetting]:
    """All settings of the stages, as an audit builds and checks them."""
    resolved = [s if isinstance(s, ResolvedStage) else resolve_stage(s, seed=0) for s in stages]
    settings = [setting for stage in resolved for setting in build_settings(stage)]
    check_any_applies(settings)
    return settings


def attackers_of(stage: Stage) -> list[tuple[str, str, str]]:
    return [
        (setting.defense.name, run.attack.name, run.attacker.value)
        for setting in settings_of(stage)
        for run in setting.runs
    ]


def test_every_defense_meets_a_naive_and_where_there_is_one_an_adaptive_attacker():
    stage = Stage(data="digits", defenses=("none", "pruning", "dropout"), attacks=("linear",))
    assert attackers_of(stage) == [
        ("none", "linear", "naive"),
        ("pruning", "linear", "naive"),
        ("pruning", "linear", "adaptive"),
        ("dropout", "linear", "naive"),
    ]


def test_auto_leaves_out_attacks_that_alter_the_model_and_says_what_did_not_apply():
    resolved = resolve_stage(Stage(model="vit-small", data="digits", image_size=8), seed=0)
    (setting,) = settings_of(resolved)
    assert [run.attack.name for run in setting.runs] == ["patch-lstsq", "labels"]
    assert [s.attack for s in setting.skipped] == ["linear", "spear", "cocktail-party"]
    assert all("fully connected" in each.why for each in setting.skipped)


def test_an_attack_that_alters_the_model_gets_a_server_of_its_own():
    stage = Stage(model="vit-small", data="digits", image_size=8, attacks=("patch-lstsq", "april"))
    honest, malicious = settings_of(stage)
    assert honest.server is not malicious.server
    assert malicious.build_knowledge(malicious.runs[0], torch.tensor([0])).altered_model
    assert honest.build_knowledge(honest.runs[0], torch.tensor([0])).altered_model is None


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (Stage(model="lenet", attacks=("linear",)), "does not apply to 'lenet'.*convolution"),
        (Stage(victims=201), "has 200 images"),
        (Stage(data="digits", image_size=4), "too small to judge"),
        (Stage(steps=2), "pass --lr"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_runs(stage, words):
    with pytest.raises(DoesNotFit, match=words):
        settings_of(stage)


def test_an_attack_need_not_apply_to_every_model_of_a_plan():
    attacks = ("linear", "patch-lstsq", "april")
    stages = [Stage(model=model, data="digits", attacks=attacks) for model in ("mlp", "vit-small")]
    found = settings_of(*stages)
    tried = [(s.resolved.stage.model, run.attack.name) for s in found for run in s.runs]
    assert tried == [("mlp", "linear"), ("vit-small", "patch-lstsq"), ("vit-small", "april")]
    assert [(s.model, s.attack) for setting in found for s in setting.skipped] == [
        ("mlp", "patch-lstsq"),
        ("mlp", "april"),
        ("vit-small", "linear"),
    ]


def test_of_several_attacks_those_that_fit_are_run_and_the_others_listed():
    stage = Stage(model="lenet", data="digits", attacks=("linear", "ig", "april"))
    found = settings_of(stage)
    assert [run.attack.name for setting in found for run in setting.runs] == ["ig"]
    assert [(s.attack, s.data) for setting in found for s in setting.skipped] == [
        ("linear", "digits"),
        ("april", "digits"),
    ]


def test_where_none_of_several_attacks_fits_each_reason_is_said():
    stage = Stage(model="lenet", data="digits", attacks=("linear", "patch-lstsq"))
    with pytest.raises(DoesNotFit, match=r"none of the attacks .*linear: .*; patch-lstsq: "):
        settings_of(stage)


def tried(stage: Stage) -> dict[str, list[str]]:
    """The attacks of each defense."""
    return {
        setting.defense.name: [run.attack.name for run in setting.runs]
        for setting in settings_of(stage)
    }


def test_auto_iterates_only_where_no_closed_form_reads_images():
    defenses = ("none", "dropout", "gaussian", "pruning", "tip")
    iterative = {attack.name for attack in keyhole.attacks.ITERATIVE}
    for names in tried(Stage(data="faces", defenses=defenses[:-1])).values():
        assert not iterative & set(names)
    found = tried(Stage(model="lenet", data="digits", defenses=defenses))
    assert found["none"] == ["labels", "ig"]
    assert found["dropout"][:4] == ["labels", "ig", "wiig", "dia"]
    # By one who does not know the bounds or the noise, and by one who does.
    assert found["pruning"] == ["labels", "ig", "ig", "dlg", "dlg"]
    assert found["gaussian"] == ["labels", "ig", "ig", "dlg"]
    assert found["tip"] == ["labels", "ig", "ig", "ig-uploaded"]


def test_auto_adds_gifd_where_its_generator_draws_such_images():
    colour = tried(Stage(model="lenet", data="photos", image_size=32))
    assert colour["none"] == ["labels", "ig", "gifd"]
    other_size = tried(Stage(model="lenet", data="photos", image_size=48))
    assert other_size["none"] == ["labels", "ig"]


def test_victims_that_a_prior_was_trained_on_are_told_of():
    photos = keyhole.data.load("photos", image_size=32)
    indices = list(range(9))
    cifar = dataclasses.replace(photos, name="cifar10")
    resolved = resolve_stage(Stage(model="lenet", data="cifar10", victims=9), seed=0, data=cifar)
    (setting,) = settings_of(resolved)
    seen = sum(i % 2 for (i,) in resolved.victims)
    assert sorted(i for (i,) in resolved.victims) == indices
    assert f"gifd's generator was trained on {seen} of the 9 images attacked" in setting.notes
    (other,) = settings_of(resolve_stage(Stage(model="lenet", victims=9), seed=0, data=photos))
    assert not any("trained on" in note for note in other.notes)


def test_what_auto_adds_has_the_settings_of_the_stage():
    stage = Stage(model="lenet", data="digits", iterations=7, parity="paper")
    (setting,) = settings_of(stage)
    ig = setting.runs[-1].attack
    assert (ig.iterations, ig.patience) == (7, 800)


def test_attacks_the_defense_was_published_with_are_the_papers():
    stage = Stage(model="lenet", data="digits", defenses=("none", "dropout"), attacks=("ig", "dia"))
    assert attackers_of(stage) == [
        ("none", "ig", "naive"),
        ("none", "dia", "naive"),
        ("dropout", "ig", "paper"),
        ("dropout", "dia", "paper"),
    ]


def test_an_attack_that_must_be_given_what_there_is_not_is_refused_alone():
    with pytest.raises(DoesNotFit, match="no masks to be given"):
        settings_of(resolve_stage(Stage(data="digits", attacks=("wiig",)), seed=0))
