"""Identifies the caller from the headers of a request, before its body is read."""

import re
from collections.abc import Mapping

from msgspec import structs

from contracts.slo import MAX_OBJECTIVE_MS, Objective, parse_objective
from gateway.errors import APIError, invalid
from gateway.keys.caller import Caller, RateLimits
from infra.keys.api_key import KeyRecord
from infra.keys.key_ring import KeyRing

OPEN_PATHS = frozenset({"/health", "/ready", "/ping"})  # every other path needs a key, unknown paths too
OPERATOR_PATHS = frozenset({"/metrics", "/stats", "/load_runs", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
_MILLISECONDS_REGEX = re.compile(r"\d{1,9}(\.\d{1,6})?", re.ASCII)


class Callers:
    """Identifies callers by their keys, or without a key file by the names that they give themselves."""

    def __init__(self, keys: KeyRing | None, default_objective: Objective) -> None:
        """`default_objective` is the objective of requests whose headers and key set none."""
        self._keys = keys
        self.default_objective = default_objective

    def identify(self, path: str, headers: Mapping[str, str]) -> Caller:
        """Returns the caller of a path (as the router sees it).

        Raises `APIError`: 401, 403, or 400 for a bad header.
        """
        caller = self._identified(path, api_key_of(headers))
        objective = objective_of(headers, caller.objective).over(self.default_objective)
        return structs.replace(caller, objective=objective, granted=caller.objective.over(self.default_objective))

    def _identified(self, path: str, api_key: str) -> Caller:
        if self._keys is None:
            return Caller(token=api_key)
        if path in OPEN_PATHS:
            return Caller(operator=False)
        if not api_key:
            message = "this server needs an API key, as Authorization: Bearer KEY or as x-api-key: KEY"
            raise APIError(401, message, code="missing_api_key")
        record = self._keys.find(api_key)
        if record is None:
            raise APIError(401, "this API key is not valid here, or is not any more", code="invalid_api_key")
        if path in OPERATOR_PATHS and not record.operator:
            raise APIError(403, f"{path} needs an operator's API key", code="operator_key_required")
        return caller_of(record)


def api_key_of(headers: Mapping[str, str]) -> str:
    """Returns the key of a request: a bearer token, or Anthropic's `x-api-key`; empty without a key."""
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key", "").strip()


def objective_of(headers: Mapping[str, str], of_key: Objective) -> Objective:
    """Returns a request's objective: from its headers, and for missing headers from its key.

    A stricter objective is served sooner, at the cost of other requests, so a header may only relax the objective of
    the key. Raises `APIError` (400) for a stricter or malformed header.
    """
    ttft = _milliseconds(headers, "x-slo-ttft-ms", of_key.ttft_ms)
    tpot = _milliseconds(headers, "x-slo-tpot-ms", of_key.tpot_ms)
    return Objective(ttft, tpot).over(of_key)


def _milliseconds(headers: Mapping[str, str], name: str, minimum: float | None) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    value = float(text) if _MILLISECONDS_REGEX.fullmatch(text.strip()) else 0.0
    if not 1 <= value <= MAX_OBJECTIVE_MS:
        raise invalid(f"{name}: {text[:64]!r} is no number of milliseconds from 1 to {MAX_OBJECTIVE_MS:.0f}", name)
    if minimum is not None and value < minimum:
        raise invalid(f"{name}: {value:g} is less than {minimum:g}, the objective of this key", name)
    return value


def caller_of(record: KeyRecord) -> Caller:
    """Returns the caller that a valid key stands for."""
    return Caller(
        key=record.id,
        tenant=record.owner,
        operator=record.operator,
        priority=record.priority,
        weight=record.weight,
        objective=parse_objective(record.slo),
        limits=RateLimits(record.requests_per_minute, record.tokens_per_minute, record.concurrency),
    )
