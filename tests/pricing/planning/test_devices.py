"""The table of devices: links that can be true, and prices with a day."""

import re

from pricing.planning.devices import DEVICES, PRICES


def test_every_device_has_links_and_every_price_a_day() -> None:
    for device in DEVICES.values():
        links = device.links
        assert links.peer >= links.host >= links.network > 0 and links.sum_latency_s > 0
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", price.as_of) and price.source for price in PRICES.values())
