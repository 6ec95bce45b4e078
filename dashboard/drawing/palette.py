"""The page's colours: mid-tones for light and dark themes, each with one meaning on the whole page."""

from dashboard.reading.figures import Outcome

OUTCOME_COLOURS = {
    Outcome.GOOD: "#2f9e77",
    Outcome.LATE: "#dd9a2b",
    Outcome.FAILED: "#d4564c",
    Outcome.REFUSED: "#8f6a4f",
    Outcome.CANCELLED: "#8d969d",
}
STAGE_COLOURS = {"waiting": "#9aa4ab", "prefill": "#6a7fd4", "handoff": "#b577c2", "decode": "#3d9bc4"}
STATE_COLOURS = {
    "ready": OUTCOME_COLOURS[Outcome.GOOD],
    "draining": OUTCOME_COLOURS[Outcome.LATE],
    "silent": OUTCOME_COLOURS[Outcome.FAILED],
}
NEUTRAL_COLOUR = "#8d969d"
PALE_ALPHA = "66"  # alpha appended to a colour, for cached KV that no sequence uses
