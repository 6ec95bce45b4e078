"""Checkpoints whose family unpacks its quantized experts itself: gpt-oss with MXFP4."""

from engine.model.formats.format import FloatFormat
from engine.model.quantized import Form


class ByFamily(FloatFormat):
    """Counts the packed experts' weights; linear layers are floats."""

    def weights_per_element(self, name: str, kind: str) -> tuple[Form | None, int]:
        if kind != "U8":
            return None, 1
        return ("int4", 2) if name.endswith("_blocks") else (None, 0)
