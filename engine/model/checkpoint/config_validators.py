"""Loads the validators of transformers' configs without their imports: the models' code and PyTorch's compiler."""

import importlib
import sys
from contextlib import suppress
from types import ModuleType

VALIDATORS, ACTIVATIONS = "transformers.utils.type_validators", "transformers.activations"


def load_validators() -> None:
    """Makes transformers validate the configs of this process as it does where PyTorch is missing.

    Its validators import its activations for their names alone, and these most of its models' code: 1.4 of the 2.2 s
    of processor time that a worker's first config takes. Without them a config's activation may be any word, so this
    is for families that check it themselves. Does nothing where either is loaded, or is arranged in another way.
    """
    if VALIDATORS in sys.modules or ACTIVATIONS in sys.modules:
        return
    nameless = ModuleType(ACTIVATIONS)
    vars(nameless)["ACT2FN"] = {}
    importlib.import_module("transformers")
    sys.modules[ACTIVATIONS] = nameless
    try:
        with suppress(ImportError):
            importlib.import_module(VALIDATORS)
    finally:
        del sys.modules[ACTIVATIONS]
