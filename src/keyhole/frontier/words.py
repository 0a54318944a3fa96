"""A frontier in words: what held and what it costs, what was broken, what was not tried."""

from __future__ import annotations

from keyhole.attacks import ATTACKS
from keyhole.defenses import DEFENSES
from keyhole.frontier.outcome import SettingOutcome
from keyhole.frontier.plan import UNDEFENDED
from keyhole.frontier.result import FrontierResult
from keyhole.threat import Attacker

PROMISE = (
    "Nothing here is a promise: a setting that held was not broken by the attackers named, on "
    "these images, with these weights."
)


def describe_frontier(result: FrontierResult) -> dict[str, list[str]]:
    """The frontier in sentences: ``held``, ``broken``, ``searched``, ``not_tried``."""
    return {
        "held": describe_held(result),
        "broken": [describe_broken(each) for each in result.broken],
        "searched": [each.words for each in result.searches],
        "not_tried": describe_not_tried(result),
    }


def summarise(result: FrontierResult) -> str:
    """The frontier in one or two sentences."""
    judged = [each for each in result.settings if each.judged]
    held = [each for each in judged if each.held]
    if not judged:
        return "No setting could be judged."
    count = "1 setting" if len(judged) == 1 else f"{len(judged)} settings"
    if not held:
        broken = f"All {count} were broken." if len(judged) > 1 else "The setting was broken."
        return f"{broken} {describe_least(result)}"
    best = result.mildest[0]
    return (
        f"{len(held)} of {count} {'was' if len(held) == 1 else 'were'} not broken by the attacks "
        f"tried. The mildest of them is {best.label}: {name_price(best, result)}."
    )


def describe_least(result: FrontierResult) -> str:
    """The broken setting of which least was read, where none held."""
    least = result.broken[-1]
    assert least.read is not None
    return (
        f"Least was read under {least.label}: {least.read.value:.0%} of the images (95%: "
        f"{least.read.low:.0%} to {least.read.high:.0%}); {name_price(least, result)}."
    )


def describe_held(result: FrontierResult) -> list[str]:
    """One sentence for the mildest setting of each kind of defense that nobody broke."""
    if not result.mildest:
        return ["No setting held: try stronger settings, or other defenses."]
    return [
        f"{each.label}: {name_price(each, result)}. {describe_evidence(each)}"
        for each in result.mildest
    ]


def name_price(setting: SettingOutcome, result: FrontierResult) -> str:
    """What a setting costs, in accuracy points and seconds.

    With a single seed there is no interval.
    """
    accuracy = f"accuracy {setting.accuracy.value:.1%}"
    plain = result.undefended
    if plain is None or setting is plain:
        return accuracy
    cost = setting.cost(plain)
    lost = cost.points.value
    points = f"{abs(lost):.1f} point{'' if f'{abs(lost):.1f}' == '1.0' else 's'}"
    change = f"{points} {'less' if lost >= 0 else 'more'} than without a defense"
    if cost.points.low != cost.points.high:
        low, high = sorted((-cost.points.low, -cost.points.high))
        change += f" (95%: {low:+.1f} to {high:+.1f})"
    else:
        change += " (one seed: no interval)"
    seconds = f"{cost.seconds:+.2f} s a round" if cost.agreed else "seeds disagree on the seconds"
    return f"{accuracy}, {change}; {seconds}"


def describe_evidence(setting: SettingOutcome) -> str:
    """Who was tried and what that shows; a missing adaptive attacker is named."""
    worst, read = setting.worst, setting.read
    assert worst is not None
    assert read is not None
    tried = ", ".join(setting.attackers)
    words = (
        f"Nobody read any of {worst.images} images (95%: at most {read.high:.0%}); tried: {tried}."
    )
    if not setting.met_adaptive and setting.defense["name"] != UNDEFENDED:
        words += " No attacker who knows the defense was among them."
    return words


def describe_broken(setting: SettingOutcome) -> str:
    """Who read most, when, and how much."""
    worst, read = setting.worst, setting.read
    assert worst is not None
    assert read is not None
    return (
        f"{setting.label}: {worst.attacker} read {worst.read} of {worst.images} images in the "
        f"{worst.moment} (95%: {read.low:.0%} to {read.high:.0%})."
    )


def describe_not_tried(result: FrontierResult) -> list[str]:
    """What nobody should take for measured."""
    plan, lines = result.plan, [f"{label}: {why}." for label, why in result.unfit.items()]
    lines += [
        f"{each.label}: no attack on images could be used."
        for each in result.settings
        if not each.judged
    ]
    missing = [
        each.label
        for each in result.settings
        if each.judged and not each.met_adaptive and each.defense["name"] != UNDEFENDED
    ]
    if missing:
        lines.append(f"No attacker who knows the defense met {', '.join(missing)}.")
    skipped = {name: why for each in result.settings for name, why in each.skipped.items()}
    lines += [f"{attack} could not be used: {why}." for attack, why in skipped.items()]
    tried = {each.defense["name"] for each in result.settings}
    rest = [name for name in DEFENSES.names() if name not in tried]
    if rest:
        lines.append(f"Defenses that were not tried: {', '.join(rest)}.")
    altering = [name for name in ATTACKS.names() if ATTACKS[name].altered_model is not None]
    lines.append(f"A server that changes the model was not tried: {', '.join(altering)}.")
    images = "one image" if plan.victim_images == 1 else f"{plan.victim_images} images"
    steps = "one step" if plan.victim_steps == 1 else f"{plan.victim_steps} steps"
    lines.append(
        f"Attacked clients held {images} and took {steps}; clients with more images or steps were "
        "not attacked; they usually leak less."
    )
    if plan.bound:
        lines.append(f"Longer attacks: these were {plan.bound}; more --iterations may read more.")
    lines.append(
        "Seconds are those on the clock, of the fastest seed; settings that were trained side by "
        "side, or on other machines, can be compared only roughly."
    )
    if len(plan.seeds) == 1:
        lines.append("One seed was run: accuracy has no interval. Add --seeds 0,1,2.")
    return lines


def name_adaptive(setting: SettingOutcome) -> str:
    """Whether one who knows the defense was tried, in a word or two."""
    if setting.defense["name"] == UNDEFENDED:
        return "no defense to know"
    return Attacker.ADAPTIVE.value if setting.met_adaptive else "no adaptive attacker"
