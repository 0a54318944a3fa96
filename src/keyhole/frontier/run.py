"""Measures a frontier: every setting with every seed, then the searches."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.data import load
from keyhole.defenses import DEFENSES
from keyhole.errors import DoesNotFit
from keyhole.frontier.outcome import SettingOutcome
from keyhole.frontier.pieces import build_setting_piece
from keyhole.frontier.plan import FrontierPlan
from keyhole.frontier.ranges import StrengthRange
from keyhole.frontier.result import FrontierResult, SearchOutcome, make_result
from keyhole.frontier.search import import_optuna, search_strength
from keyhole.frontier.seed_outcome import SeedOutcome
from keyhole.models import build
from keyhole.progress import Progress
from keyhole.scale import FinishedPiece, Machine, PiecesFailed, PieceStore, run_pieces
from keyhole.scale.outcome import Place
from keyhole.scale.parts import check_parts


def find_frontier(
    plan: FrontierPlan,
    store: PieceStore,
    *,
    on: Place | None = None,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> FrontierResult:
    """Trains and attacks every setting with every seed, and searches the ranges.

    Called again after an interruption, it continues; what another frontier measured is found.

    Args:
        plan: What to measure.
        store: Where pieces keep their results.
        on: Where to run them; None: in this process.
        machine: What each may use.
        progress: Shows how many are finished, and what is at work.

    Raises:
        DoesNotFit: No setting fits the model, or a search is asked for and Optuna is missing.
    """
    if plan.ranges:
        import_optuna()
    place = machine or Machine()
    ends = [text for each in plan.ranges for text in name_ends(each)]
    wanted = list(dict.fromkeys([*plan.settings, *ends]))
    check_parts(defenses=wanted, attacks=plan.attacks, partitions=[plan.partition])
    fitting, unfit = split_by_fit(plan, wanted, place.data_dir)

    def measure(defenses: Sequence[str]) -> tuple[dict[str, SettingOutcome], dict[str, str]]:
        return measure_settings(plan, defenses, store, on=on, machine=place, progress=progress)

    outcomes, failed = measure(fitting)
    if not outcomes:
        raise DoesNotFit(f"no setting could be measured: {'; '.join({**unfit, **failed}.values())}")

    def measure_one(defense: str) -> SettingOutcome | None:
        if defense not in outcomes and defense not in failed:
            found, broken_off = measure([defense])
            outcomes.update(found)
            failed.update(broken_off)
        return outcomes.get(defense)

    searches: list[SearchOutcome] = []
    searched = {text: each.text for each in plan.ranges for text in name_ends(each)}
    for strength in plan.ranges:
        if all(end in outcomes for end in name_ends(strength)):  # else why is among the unfit
            found, tried = search_strength(strength, measure_one, plan.trials)
            searches.append(found)
            searched |= dict.fromkeys(tried, strength.text)
    for text in plan.settings:
        searched.pop(text, None)
    shown = [SettingOutcome(each.seeds, searched.get(text, "")) for text, each in outcomes.items()]
    return make_result(plan, shown, {**unfit, **failed}, searches)


def name_ends(strength: StrengthRange) -> list[str]:
    """The defenses at the strong end of a range and at its mild one."""
    return [strength.defense_at(share) for share in (1.0, 0.0)]


def split_by_fit(
    plan: FrontierPlan, defenses: Sequence[str], data_dir: str | None
) -> tuple[list[str], dict[str, str]]:
    """The defenses that fit the model, and why others do not."""
    images = load(plan.data, image_size=plan.image_size, data_dir=data_dir)
    model = build(
        plan.model,
        classes=len(images.classes),
        channels=images.shape[0],
        image_size=images.size,
        seed=plan.seeds[0],
        weights=plan.weights,
    )
    fitting, unfit = [], {}
    for text in defenses:
        try:
            DEFENSES.parse(text).validate(model)
            fitting.append(text)
        except DoesNotFit as error:
            unfit[text] = str(error)
    return fitting, unfit


def measure_settings(
    plan: FrontierPlan,
    defenses: Sequence[str],
    store: PieceStore,
    *,
    on: Place | None,
    machine: Machine,
    progress: Progress | None,
) -> tuple[dict[str, SettingOutcome], dict[str, str]]:
    """What was measured of each defense, and why nothing was of others.

    A defense of which one seed failed is left out: its share would not be that of the others.
    """
    pieces = {
        (d, seed): build_setting_piece(plan, d, seed) for d in defenses for seed in plan.seeds
    }
    failed: dict[str, str] = {}
    try:
        run_pieces(list(pieces.values()), store, on=on, machine=machine, progress=progress)
    except PiecesFailed as error:
        why = {each.piece.key: each.error or "" for each in error.failed}
        failed = {d: why[piece.key] for (d, _), piece in pieces.items() if piece.key in why}
    outcomes = {
        defense: SettingOutcome(
            tuple(
                SeedOutcome.from_json(FinishedPiece(pieces[defense, seed], store).result)
                for seed in plan.seeds
            )
        )
        for defense in defenses
        if defense not in failed
    }
    return outcomes, failed
