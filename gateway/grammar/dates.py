"""Keeps the 29th of February to leap years, which llguidance's formats of dates have every year.

A pattern beside a format counts too, so the rest of a date stays llguidance's to know.
"""

from typing import Any

_LEAP_YEAR = "[0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00"
_EVERY_YEARS = "0[13-9]|1[0-2]|02-([01][0-9]|2[0-8])"  # days, of which 02-29 is none
LEAP_YEAR_PATTERN = f"^(({_LEAP_YEAR})-.*|[0-9]{{4}}-({_EVERY_YEARS}).*)$"


def with_leap_years(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns one schema, without what is below it, or a changed copy; one that has a pattern stays as it is."""
    if schema.get("format") not in ("date", "date-time") or "pattern" in schema:
        return schema
    return {**schema, "pattern": LEAP_YEAR_PATTERN}
