"""Names the page's colours: mid-tones that read on light and on dark, each with one meaning on the whole page."""

from dashboard.figures import Verdict

VERDICTS = {
    Verdict.GOOD: "#2f9e77",
    Verdict.LATE: "#dd9a2b",
    Verdict.FAILED: "#d4564c",
    Verdict.REFUSED: "#8f6a4f",
    Verdict.CANCELLED: "#8d969d",
}
STAGES = {"waiting": "#9aa4ab", "prefill": "#6a7fd4", "handoff": "#b577c2", "decode": "#3d9bc4"}
STATES = {"ready": VERDICTS[Verdict.GOOD], "draining": VERDICTS[Verdict.LATE], "silent": VERDICTS[Verdict.FAILED]}
QUIET = "#8d969d"
PALE = "66"  # behind a colour: its pale form, for KV that nobody uses but the cache keeps
