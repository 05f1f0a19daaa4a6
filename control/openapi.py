"""The API's own description (OpenAPI 3.1), served at /openapi.json.

Written by hand beside the routes, and held against them by a test. Prevents: a description of an API
that is not the one that answers.
"""

from __future__ import annotations

from typing import Any

from control import api_alerts, api_estimates, api_exports, api_finance, api_flow, api_months, api_nodes
from control.api_calls import described
from control.tokens import Scope
from fleet.policy import Policy

_REF = "#/components/schemas/"
_OBJECT: dict[str, Any] = {"type": "object"}
_ERROR = {
    "description": "What is wrong and what to do",
    "content": {"application/json": {"schema": {"$ref": _REF + "Error"}}},
}
_MONTH = {
    "name": "month",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
}
_PUBLISHED = {
    "type": "object",
    "properties": {
        "revision": {"type": "integer"},
        "digest": {"type": "string"},
        "rollout": {"type": "integer"},
    },
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The same key again returns the first answer and changes nothing",
}


def document() -> dict[str, Any]:
    """Return the whole OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rhodeck",
            "version": "1",
            "description": "Status, policy and spend of a fleet of vLLM nodes.",
        },
        "paths": {
            "/healthz": {"get": _operation("The process is up", None, _said("Up"))},
            "/readyz": {
                "get": _operation(
                    "Say whether the database answers", None, {"200": {"description": "Ready"}}
                )
            },
            "/openapi.json": {"get": _operation("This document", None, _said("OpenAPI"))},
            "/api/v1/status": {
                "get": _operation(
                    "Is the fleet healthy, and why not",
                    Scope.STATUS_READ,
                    _json("Status", {"type": "object"}),
                )
            },
            "/api/v1/rho": {
                "get": _operation(
                    "Every rho with its interval and the formula with its values",
                    Scope.STATUS_READ,
                    _json("Verdicts", _OBJECT),
                    parameters=[
                        {
                            "name": "scope",
                            "in": "query",
                            "schema": {"enum": ["fleet", "pool", "model", "tier", "node", "engine"]},
                            "description": "May be given several times; without: all but node and engine",
                        },
                        {
                            "name": "name",
                            "in": "query",
                            "schema": {"type": "string"},
                            "description": "Only of this subject",
                        },
                    ],
                )
            },
            "/api/v1/quality": {
                "get": _operation(
                    "What is wrong with the data, since when, and which numbers suffer",
                    Scope.STATUS_READ,
                    _json("Findings", _OBJECT),
                    parameters=[
                        {
                            "name": "source",
                            "in": "query",
                            "schema": {"type": "string"},
                            "description": "Only of this node or gateway; empty: the controller itself",
                        },
                        {
                            "name": "hours",
                            "in": "query",
                            "schema": {"type": "integer", "minimum": 0, "maximum": 720, "default": 24},
                            "description": "Also findings that ended in these last hours",
                        },
                    ],
                )
            },
            "/api/v1/diagnosis": {
                "get": _operation(
                    "Capacity or scheduling: causes with their evidence, and which knob to turn",
                    Scope.STATUS_READ,
                    _json("Verdict", _OBJECT),
                    parameters=[
                        {
                            "name": "since",
                            "in": "query",
                            "schema": {"type": "string", "pattern": "^[0-9]{1,6}[smh]$", "default": "15m"},
                            "description": "How far back, from 3m to 6h",
                        }
                    ],
                )
            },
            "/api/v1/policy": {
                "get": _operation("The newest revision", Scope.POLICY_READ, _json("Revision", _OBJECT)),
                "post": _operation(
                    "Publish a revision",
                    Scope.POLICY_WRITE,
                    _json("Published", _PUBLISHED, "201"),
                    body={
                        "document": {"$ref": _REF + "Policy"},
                        "parent": {
                            "type": "integer",
                            "description": "Revision it was edited from, or 0",
                        },
                        "note": {"type": "string", "description": "Why"},
                        "strategy": {"enum": ["staged", "all_at_once"], "default": "staged"},
                    },
                    required=["document", "parent", "note"],
                ),
            },
            "/api/v1/policy/rollback": {
                "post": _operation(
                    "Publish an old revision's content again, to all gateways at once",
                    Scope.POLICY_WRITE,
                    _json("Published", _PUBLISHED, "201"),
                    body={"to": {"type": "integer"}, "note": {"type": "string"}},
                    required=["to", "note"],
                )
            },
            api_exports.SPEND_PATH: {
                "get": _operation(
                    "A month's spend as a file, whole or refused",
                    Scope.SPEND_READ,
                    {"200": {"description": "Its sha256 is the ETag", "content": {"*/*": {}}}},
                    parameters=[_MONTH, *api_exports.SPEND_PARAMETERS],
                )
            },
            api_exports.USAGE_PATH: {
                "get": _operation(
                    "A month's usage records as a file, whole or refused",
                    Scope.SPEND_READ,
                    {"200": {"description": "Its sha256 is the ETag", "content": {"*/*": {}}}},
                    parameters=[_MONTH, api_exports.USAGE_FORMAT],
                )
            },
            "/api/v1/months": {
                "get": _operation(
                    "Months with their states; of closed ones total, checksum and signature",
                    Scope.SPEND_READ,
                    _json("Months", _OBJECT),
                )
            },
            **described(
                (
                    *api_alerts.CALLS,
                    *api_nodes.CALLS,
                    *api_flow.CALLS,
                    *api_months.CALLS,
                    *api_finance.CALLS,
                    *api_exports.CALLS,
                    *api_estimates.CALLS,
                ),
                _operation,
            ),
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Policy": Policy.model_json_schema(
                    by_alias=True, ref_template=_REF + "Policy/$defs/{model}"
                ),
                "Error": {
                    "type": "object",
                    "properties": {
                        "error": {"type": "string"},
                        "message": {"type": "string"},
                        "hint": {"type": "string"},
                        "field": {"type": ["string", "null"]},
                        "retryable": {"type": "boolean"},
                        "newest": {
                            "type": ["object", "null"],
                            "description": "The newest revision, where `parent` is not the newest",
                        },
                        "changes": {
                            "type": "array",
                            "description": "What changed since `parent`: JSON pointer, then, now",
                        },
                    },
                },
            },
        },
    }


def _json(name: str, schema: dict[str, Any], code: str = "200") -> dict[str, Any]:
    return {code: {"description": name, "content": {"application/json": {"schema": schema}}}}


def _said(what: str) -> dict[str, Any]:
    return {"200": {"description": what}}


def _operation(
    summary: str,
    scope: Scope | None,
    responses: dict[str, Any],
    *,
    body: dict[str, Any] | None = None,
    required: list[str] | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary, "responses": responses | {"default": _ERROR}}
    if scope is not None:
        operation |= {"security": [{"token": []}], "description": f"Needs the scope `{scope}`."}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        schema = {
            "type": "object",
            "properties": body,
            "required": required or [],
            "additionalProperties": False,
        }
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        operation["parameters"] = [_KEY]
    return operation
