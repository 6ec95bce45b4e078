"""Restricts the 29th of February to leap years, since llguidance's date formats allow it every year.

A pattern beside a format applies as well, so llguidance still checks the rest of a date.
"""

from typing import Any

_LEAP_YEAR = "[0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00"
_EVERY_YEARS = "0[13-9]|1[0-2]|02-([01][0-9]|2[0-8])"  # all days but 02-29
LEAP_YEAR_PATTERN = f"^(({_LEAP_YEAR})-.*|[0-9]{{4}}-({_EVERY_YEARS}).*)$"


def with_leap_years(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns one schema, without its subschemas, with the pattern; a schema with its own pattern stays unchanged."""
    if schema.get("format") not in ("date", "date-time") or "pattern" in schema:
        return schema
    return {**schema, "pattern": LEAP_YEAR_PATTERN}
