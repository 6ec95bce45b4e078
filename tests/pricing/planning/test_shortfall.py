"""An objective that nothing keeps: which limit, and what would keep it."""

from pricing.planning.shortfall import too_few, unmet
from tests.pricing.planning.figures import EXACT, copy, load

COPIES = {EXACT: [copy(4), copy(8)]}


def test_limits_that_no_copy_keeps_are_named_with_limits_that_would_do() -> None:
    ttft, tpot = unmet(COPIES, load(1.0, ttft_s=0.02, tpot_s=0.005))
    assert ttft.startswith("TTFT 20 ms: H100 x 8 alone takes") and "(products); --slo-ttft-ms " in ttft
    assert tpot.startswith("TPOT 5 ms: H100 x 8 takes") and "(reading weights); --slo-tpot-ms " in tpot
    eased = load(
        1.0,
        ttft_s=int(ttft.partition("--slo-ttft-ms ")[2].split()[0]) / 1000,
        tpot_s=int(tpot.partition("--slo-tpot-ms ")[2].split()[0]) / 1000,
    )
    assert unmet(COPIES, eased) == []


def test_too_few_devices_say_how_many_and_which_rate_they_bear() -> None:
    needed, borne = too_few(COPIES, load(40.0), {"H100": 8})
    assert needed.startswith("40 requests/s need ") and needed.endswith("--devices allows 8 x H100")
    assert borne.startswith("8 x H100 bear about ")
