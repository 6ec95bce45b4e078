"""Reads checkpoints whose family unpacks what is quantized itself, because only its experts are: gpt-oss with MXFP4."""

from engine.model.formats.format import Plain
from engine.model.quantized import Form


class ByFamily(Plain):
    """Counts the tensors of packed experts; linear layers are numbers."""

    def stands_for(self, name: str, kind: str) -> tuple[Form | None, int]:
        """See `WeightFormat`: a byte of blocks has two weights, and one of scales says how they are read."""
        if kind != "U8":
            return None, 1
        return ("int4", 2) if name.endswith("_blocks") else (None, 0)
