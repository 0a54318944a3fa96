import importlib
import os
from pathlib import Path

import pytest

from keyhole.auditing import audit
from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.auditing.plan import Plan, Stage, read_plan, tour
from keyhole.errors import BadValue, UnknownName
from keyhole.federation.plan import TrainingPlan
from keyhole.settings import make_settings


def write(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def test_a_plan_file_gives_its_stages(tmp_path):
    plan = read_plan(
        write(
            tmp_path,
            'seed = 3\n[[stage]]\nmodel = "lenet"\ndefenses = "none, gaussian(sigma=0.1, clip=1)"\n'
            '[[stage]]\ndata = "digits"\n',
        )
    )
    assert plan.seed == 3
    assert plan.stage[0].defenses == ("none", "gaussian(sigma=0.1, clip=1)")
    assert (plan.stage[1].model, plan.stage[1].data) == ("mlp", "digits")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('[[stage]]\nmodle = "mlp"\n', UnknownName, "did you mean model"),
        ("sed = 1\n", UnknownName, "did you mean seed"),
        ("[[stage]]\nvictims = 0\n", BadValue, "victims"),
        ("seed = 1\n", BadValue, "stage"),
        ("[[stage\n", BadValue, "cannot be read as TOML"),
        (f"x = {'[' * 3000}{']' * 3000}", BadValue, "lie too deep"),
        (f"{'.'.join('a' * 3000)} = 1", BadValue, "more than 64 deep"),
        (f"seed = {'9' * 5000}", BadValue, "cannot be read as TOML"),
        (f"seed = {'9' * 400}\n[[stage]]", BadValue, "seed in .*less than"),
        ("seed = -1\n[[stage]]", BadValue, "seed in .*greater than or equal to 0, got -1"),
        ("[[stage]]\nlr = inf\n", BadValue, "lr in .*finite"),
        ("[[stage]]\nlr = nan\n", BadValue, "lr in .*"),
        (f"[[stage]]\nvictims = {'9' * 30}\n", BadValue, "victims"),
        (f"[[stage]]\nmodel = [{'1,' * 5000}]\n", BadValue, "model"),
        ("[[stage]]\nmodel = 1979-05-27\n", BadValue, "model"),
        ("x = 2023-13-45\n", BadValue, "cannot be read as TOML"),
    ],
)
def test_a_bad_plan_file_is_explained_in_one_line(tmp_path, text, error, words):
    with pytest.raises(error, match=words) as raised:
        read_plan(write(tmp_path, text))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_plan_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadValue, match="not a regular file"):
        read_plan(tmp_path / "pipe")
    with pytest.raises(BadValue, match="Is a directory"):
        read_plan(tmp_path)
    with pytest.raises(BadValue, match="does not exist"):
        read_plan(tmp_path / "nothing")


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_generator_takes_is_refused_before_any_work(tmp_path, monkeypatch, seed):
    room = importlib.import_module("keyhole.auditing.launch")
    monkeypatch.setattr(room, "resolve_stage", lambda *_, **__: pytest.fail("work has begun"))
    with pytest.raises(BadValue, match="seed: input should be"):
        tour().with_all(seed=seed)
    with pytest.raises(BadValue, match="seed: input should be"):
        audit(model="mlp", data="digits", seed=seed, out=tmp_path / "out")
    for plan in (TrainingPlan, MembershipPlan):
        with pytest.raises(BadValue, match="seed: input should be"):
            make_settings(plan, {"seed": seed})
    assert not (tmp_path / "out").exists()


def test_overrides_reach_every_stage_and_leave_the_rest():
    plan = tour().with_all(victims=2, seed=7, lr=None)
    assert {stage.victims for stage in plan.stage} == {2}
    assert plan.seed == 7
    assert [s.model for s in plan.stage] == [s.model for s in tour().stage]


def test_the_digest_tells_plans_apart():
    one = Plan(stage=(Stage(),))
    assert one.digest == Plan(stage=(Stage(),)).digest
    assert one.digest != Plan(seed=1, stage=(Stage(),)).digest


def test_an_override_is_checked_like_a_value_in_the_file():
    with pytest.raises(BadValue, match="batch-size"):
        make_settings(Stage, {"batch_size": -1})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"iterations": 0}, "iterations: .*greater than or equal to 1"),
        ({"iterations": "many"}, "iterations: "),
        ({"parity": "exact"}, "parity: .*'paper'"),
        ({"client_mode": "sleep"}, "client-mode: .*'frozen-norm'"),
    ],
)
def test_bad_settings_of_iterative_attacks_are_explained_in_one_line(values, words):
    with pytest.raises(BadValue, match=words) as raised:
        make_settings(Stage, values)
    assert "\n" not in str(raised.value)


def test_iterations_and_parity_tell_plans_apart():
    plans = [Plan(stage=(Stage(**v),)) for v in ({}, {"iterations": 9}, {"parity": "paper"})]
    assert len({plan.digest for plan in plans}) == 3
