"""What SARIF 2.1.0 allows in the objects that a gate's log has, as a JSON schema.

From the standard's appendix of properties: each object is closed, so that a name which it does not
know is an error, as it is in the schema that code hosts check logs with.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
BAG = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": TEXT, "uniqueItems": True}},
}
MESSAGE = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("text", "markdown", "id"), TEXT),
        "arguments": {"type": "array", "items": TEXT},
        "properties": BAG,
    },
    "anyOf": [{"required": ["text"]}, {"required": ["id"]}],
    "additionalProperties": False,
}


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**properties, "properties": BAG},
        "required": list(required),
        "additionalProperties": False,
    }


def several(items: dict[str, Any], *, least: int = 0, unique: bool = False) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "uniqueItems": unique}


def whole(least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least}


ARTIFACT = closed(
    uri={"type": "string", "format": "uri-reference"},
    uriBaseId=TEXT,
    index=whole(-1),
    description=MESSAGE,
)
REGION = closed(
    **{name: whole(1) for name in ("startLine", "startColumn", "endLine", "endColumn")},
    **{name: whole(-1) for name in ("charOffset", "byteOffset")},
    **{name: whole(0) for name in ("charLength", "byteLength")},
    message=MESSAGE,
    sourceLanguage=TEXT,
)
PHYSICAL = {
    **closed(artifactLocation=ARTIFACT, region=REGION, contextRegion=REGION, address={}),
    "anyOf": [{"required": ["address"]}, {"required": ["artifactLocation"]}],
}
LOGICAL = closed(
    **dict.fromkeys(("name", "fullyQualifiedName", "decoratedName", "kind"), TEXT),
    index=whole(-1),
    parentIndex=whole(-1),
)
LOCATION = closed(
    id=whole(-1),
    physicalLocation=PHYSICAL,
    logicalLocations=several(LOGICAL, unique=True),
    message=MESSAGE,
)
RESULT = closed(
    ("message",),
    ruleId=TEXT,
    ruleIndex=whole(-1),
    kind={"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
    level={"enum": ["none", "note", "warning", "error"]},
    message=MESSAGE,
    locations=several(LOCATION),
    guid=TEXT,
    fingerprints={"type": "object", "additionalProperties": TEXT},
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
)
RULE = closed(
    ("id",),
    id=TEXT,
    name=TEXT,
    shortDescription=closed(("text",), text=TEXT, markdown=TEXT),
    fullDescription=closed(("text",), text=TEXT, markdown=TEXT),
    helpUri={"type": "string", "format": "uri"},
)
DRIVER = closed(
    ("name",),
    **dict.fromkeys(("name", "version", "organization", "fullName"), TEXT),
    informationUri={"type": "string", "format": "uri"},
    rules=several(RULE, unique=True),
)
INVOCATION = closed(("executionSuccessful",), executionSuccessful={"type": "boolean"})
RUN = closed(
    ("tool",),
    tool=closed(("driver",), driver=DRIVER),
    invocations=several(INVOCATION),
    results=several(RESULT),
)
LOG: dict[str, Any] = {
    **closed(
        ("version", "runs"),
        **{"$schema": {"type": "string", "format": "uri"}},
        version={"enum": ["2.1.0"]},
        runs=several(RUN, least=0),
    ),
    "$schema": "https://json-schema.org/draft/2020-12/schema",
}
