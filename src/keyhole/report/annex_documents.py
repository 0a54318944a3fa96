"""What three documents ask for, in plain words, and what a run has to say to it.

The documents: Opinion 28/2024 of the European Data Protection Board, NIST Special Publication
800-226, and chapter C11 of OWASP's AI Security Verification Standard 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.report.annex_evidence import Evidence
from keyhole.report.words import join_words

COVERED, PARTLY, MISSING = "evidence here", "in part", "not in this run"


@dataclass(frozen=True)
class AnnexRow:
    """One thing that a document asks for.

    Args:
        part: Where the document asks for it; empty where it has no number.
        asks: What it asks for.
        says: What the run has to say to it.
        needs: What is left to those who assess; empty if nothing is.
        status: ``evidence here``, ``in part`` or ``not in this run``.
    """

    part: str
    asks: str
    says: str
    needs: str
    status: str


@dataclass(frozen=True)
class AnnexDocument:
    """One document, and what a run has to say to it.

    Args:
        key: Its name in the page's address.
        name: What it is called.
        edition: Its full title and date.
        about: What it is about, and how far an audit bears on it.
        rows: What it asks for.
    """

    key: str
    name: str
    edition: str
    about: str
    rows: tuple[AnnexRow, ...]


NOTHING = "Nothing."
NO_IMAGES = "Nothing: no attack of this run looks for images in updates."
MEMBERSHIP = "Run keyhole membership to test who was a member."


def list_documents(evidence: Evidence) -> list[AnnexDocument]:
    """All documents with what a run has to say to each.

    Args:
        evidence: What the run has to say.
    """
    return [describe_edpb(evidence), describe_nist(evidence), describe_aisvs(evidence)]


def grade(words: str, best: str = PARTLY) -> str:
    """The status of a row: what it is at best if the run has words for it."""
    return best if words else MISSING


def describe_edpb(evidence: Evidence) -> AnnexDocument:
    """Opinion 28/2024."""
    tried = join_words(evidence.defenses)
    defenses = f"Defenses tried: {tried}. {evidence.acted}".strip() if tried else ""
    tests = " ".join(filter(None, (evidence.reconstruction, evidence.labels, evidence.membership)))
    untested = [
        name
        for name, words in (
            ("membership inference", evidence.membership),
            ("reconstruction from updates", evidence.reconstruction),
        )
        if not words
    ]
    means = " ".join(filter(None, (evidence.means, evidence.adaptive)))
    return AnnexDocument(
        "edpb",
        "EDPB Opinion 28/2024",
        "European Data Protection Board, Opinion 28/2024 on certain data protection aspects "
        "related to the processing of personal data in the context of AI models, adopted on "
        "17 December 2024",
        "It says when an AI model may count as anonymous: the likelihood that personal data of "
        "those whose data trained it are extracted from it, and the likelihood that queries bring "
        "such data out, must both be insignificant, with all means that are reasonably likely to "
        "be used. Authorities judge case by case. An audit of updates is about what travels while "
        "the model is trained; of the finished model it says nothing.",
        (
            AnnexRow(
                "Anonymity",
                "How likely is it that personal data used in training are extracted directly?",
                evidence.reconstruction or NO_IMAGES,
                "Whether an image is personal data is for you to judge. Say who sees single "
                "updates, for how long, and when they are deleted.",
                grade(evidence.reconstruction),
            ),
            AnnexRow(
                "Anonymity",
                "How likely is it that queries to the model bring such data out?",
                evidence.membership or "Nothing: no attack of this run asks the finished model.",
                "" if evidence.membership else MEMBERSHIP,
                grade(evidence.membership),
            ),
            AnnexRow(
                "Anonymity",
                "Which means are reasonably likely to be used, by the controller or by others?",
                means or NOTHING,
                "Say which of these attackers is likely in your deployment: who runs the server, "
                "who could take it over, what that costs.",
                grade(means),
            ),
            AnnexRow(
                "Testing and resistance to attacks",
                "Was the model tested against known attacks, such as attribute and membership "
                "inference, exfiltration, regurgitation of training data, model inversion and "
                "reconstruction?",
                tests or NOTHING,
                f"Not tested here: {join_words([*untested, 'the other attacks'])}.",
                grade(tests),
            ),
            AnnexRow(
                "Model design",
                "Were privacy-preserving techniques used in training?",
                defenses or "No defense was tried.",
                "Say which of these settings is the one that you deploy.",
                grade(defenses, COVERED),
            ),
            AnnexRow(
                "Documentation",
                "Can an authority follow the assessment?",
                "The run folder holds the plan, the scores of every image, the seeds and the "
                f"versions ({evidence.versions or 'not known'}). The same plan can be run again.",
                "Keep the run folder with the assessment.",
                PARTLY,
            ),
        ),
    )


def describe_nist(evidence: Evidence) -> AnnexDocument:
    """NIST SP 800-226."""
    claims = f"{'; '.join(evidence.claims)}." if evidence.claims else ""
    return AnnexDocument(
        "nist",
        "NIST SP 800-226",
        "National Institute of Standards and Technology, Special Publication 800-226, Guidelines "
        "for Evaluating Differential Privacy Guarantees, March 2025",
        "It helps to judge claims of differential privacy: a guarantee rests on several parts, "
        "each on those below it, and there are hazards by which it fails in practice. It applies "
        "where somebody claims differential privacy. An attack that succeeds may refute a claim; "
        "one that fails proves nothing.",
        (
            AnnexRow(
                "Privacy parameters",
                "Which epsilon and delta are claimed?",
                claims
                or "No defense of this run claims a budget. Noise alone is no guarantee: what one "
                "person contributes must be bounded, and all rounds must be counted.",
                "keyhole epsilon puts a measured lower bound beside a claimed epsilon.",
                grade(claims),
            ),
            AnnexRow(
                "Unit of privacy",
                "What does the guarantee protect: one image, or all that a client holds?",
                evidence.server or NOTHING,
                "State the unit; a guarantee for one image is none for a client with many.",
                grade(evidence.server),
            ),
            AnnexRow(
                "Threat model",
                "Whom does one have to trust: the server (central), or nobody (local)?",
                " ".join(filter(None, (evidence.server, evidence.reconstruction))) or NOTHING,
                "Noise that a server adds afterwards protects nobody from that server.",
                grade(evidence.reconstruction),
            ),
            AnnexRow(
                "Implementation",
                "Does the mechanism do what it claims to do?",
                evidence.acted or "Nothing: no defense was checked.",
                "A check of updates finds what is missing or too weak; it is no proof of the code.",
                grade(evidence.acted),
            ),
            AnnexRow(
                "Security and data collection",
                "Are the data protected where they are collected, kept and used?",
                NOTHING,
                "Describe access control, storage and transport yourself.",
                MISSING,
            ),
        ),
    )


def describe_aisvs(evidence: Evidence) -> AnnexDocument:
    """OWASP AISVS 1.0, chapter C11."""
    claims = f"{'; '.join(evidence.claims)}." if evidence.claims else ""
    tests = " ".join(filter(None, (evidence.reconstruction, evidence.means, evidence.adaptive)))
    return AnnexDocument(
        "aisvs",
        "OWASP AISVS C11",
        "OWASP Artificial Intelligence Security Verification Standard 1.0, chapter C11 Adversarial "
        "Robustness; numbers of release 1.0, drafts before it have others",
        "A list of requirements to verify. It is written for models that answer queries, so that "
        "an audit of updates stands beside most of it rather than under it.",
        (
            AnnexRow(
                "11.1.3",
                "Models are evaluated against known attacks that fit their kind of data.",
                tests or NO_IMAGES,
                "These are attacks on privacy; evasion and the like are not tested here.",
                grade(tests),
            ),
            AnnexRow(
                "11.2.1",
                "Sensitive attributes that the model infers are not returned in its outputs.",
                NOTHING,
                "Look at what your model returns.",
                MISSING,
            ),
            AnnexRow(
                "11.2.4",
                "Training on sensitive data uses differentially private optimisation.",
                claims or "No defense of this run claims a budget of differential privacy.",
                "Say whether the data are sensitive, and which budget is spent in all rounds.",
                grade(claims),
            ),
            AnnexRow(
                "11.2.5",
                "Simulated membership inference does not exceed random guessing.",
                evidence.membership or "Nothing: no attack of this run asks who was a member.",
                "" if evidence.membership else MEMBERSHIP,
                grade(evidence.membership, COVERED),
            ),
        ),
    )
