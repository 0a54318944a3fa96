"""The audit: a plan, its run, findings, and the verdict on each defense.

Names are imported when they are first used: a plan can be read and refused without torch.
"""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.auditing.captured_inference import CapturedMembership
    from keyhole.auditing.captured_membership import infer_captured_membership
    from keyhole.auditing.comparison import Comparison, compare_results
    from keyhole.auditing.empirical_epsilon import EpsilonResult, audit_epsilon
    from keyhole.auditing.epsilon_plan import EpsilonPlan
    from keyhole.auditing.finding import Finding, read_versions
    from keyhole.auditing.gradient_search import GradientAttackResult
    from keyhole.auditing.incoming import IncomingCheck, check_incoming, incoming_mod
    from keyhole.auditing.json_schema import SCHEMA_VERSION, result_schema
    from keyhole.auditing.labels import label_defense
    from keyhole.auditing.launch import audit, run_plan
    from keyhole.auditing.malicious_strategy import malicious
    from keyhole.auditing.measurement import (
        Measurement,
        measure_findings,
        merge_measurements,
        read_regime,
    )
    from keyhole.auditing.membership import infer_membership
    from keyhole.auditing.membership_plan import MembershipPlan
    from keyhole.auditing.membership_result import MembershipResult
    from keyhole.auditing.own_gradient import attack_gradient
    from keyhole.auditing.plan import Plan, Stage, read_plan, tour
    from keyhole.auditing.regime_map import MappedRegime
    from keyhole.auditing.results import AuditResult, load_result
    from keyhole.auditing.stage_attacks import choose_attackers
    from keyhole.auditing.step_orders import count_orders
    from keyhole.auditing.store import Store
    from keyhole.auditing.sweep import Sweep, expand_plan, read_sweep
    from keyhole.auditing.verdict import HONEST, MALICIOUS, MaliciousVerdict, Verdict, VerdictLine
    from keyhole.progress import Progress

__all__ = [
    "HONEST",
    "MALICIOUS",
    "SCHEMA_VERSION",
    "AuditResult",
    "CapturedMembership",
    "Comparison",
    "EpsilonPlan",
    "EpsilonResult",
    "Finding",
    "GradientAttackResult",
    "IncomingCheck",
    "MaliciousVerdict",
    "MappedRegime",
    "Measurement",
    "MembershipPlan",
    "MembershipResult",
    "Plan",
    "Progress",
    "Stage",
    "Store",
    "Sweep",
    "Verdict",
    "VerdictLine",
    "attack_gradient",
    "audit",
    "audit_epsilon",
    "check_incoming",
    "choose_attackers",
    "compare_results",
    "count_orders",
    "expand_plan",
    "incoming_mod",
    "infer_captured_membership",
    "infer_membership",
    "label_defense",
    "load_result",
    "malicious",
    "measure_findings",
    "merge_measurements",
    "read_plan",
    "read_regime",
    "read_sweep",
    "read_versions",
    "result_schema",
    "run_plan",
    "tour",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
