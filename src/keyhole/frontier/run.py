"""Measures a frontier: every setting with every seed, then the searches."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.data import load
from keyhole.defenses import DEFENSES
from keyhole.errors import DoesNotFit
from keyhole.frontier.outcome import SettingOutcome
from keyhole.frontier.pieces import build_setting_piece
from keyhole.frontier.plan import FrontierPlan
from keyhole.frontier.result import FrontierResult, SearchOutcome, make_result
from keyhole.frontier.search import import_optuna, search_strength
from keyhole.frontier.seed_outcome import SeedOutcome
from keyhole.models import build
from keyhole.progress import Progress
from keyhole.scale import FinishedPiece, Machine, PiecesFailed, PieceStore, run_pieces
from keyhole.scale.outcome import Place


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
    ends = [each.defense_at(share) for each in plan.ranges for share in (1.0, 0.0)]
    wanted = list(dict.fromkeys([*plan.settings, *ends]))
    fitting, unfit = split_by_fit(plan, wanted, place.data_dir)

    def measure(defenses: Sequence[str]) -> tuple[dict[str, SettingOutcome], dict[str, str]]:
        return measure_settings(plan, defenses, store, on=on, machine=place, progress=progress)

    outcomes, failed = measure(fitting)
    if not outcomes:
        raise DoesNotFit(f"no setting could be measured: {'; '.join({**unfit, **failed}.values())}")
    searches: list[SearchOutcome] = []
    for strength in plan.ranges:
        ends_failed = [strength.defense_at(s) for s in (1.0, 0.0)]
        if any(end not in outcomes for end in ends_failed):
            continue  # why is among the settings that do not fit

        def measure_one(defense: str) -> SettingOutcome:
            if defense not in outcomes:
                found, broken_off = measure([defense])
                if defense not in found:
                    raise DoesNotFit(f"{defense}: {broken_off[defense]}")
                outcomes.update(found)
            return outcomes[defense]

        searched, _ = search_strength(strength, measure_one, plan.trials)
        searches.append(searched)
    named = set(plan.settings)
    shown = [
        each if text in named else SettingOutcome(each.seeds, searched=find_range(plan, text))
        for text, each in outcomes.items()
    ]
    return make_result(plan, shown, {**unfit, **failed}, searches)


def find_range(plan: FrontierPlan, defense: str) -> str:
    """The text of the range that a setting of a search belongs to."""
    name = DEFENSES.parse(defense).name
    return next((each.text for each in plan.ranges if each.name == name), "")


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
