"""The exceptions of Baton. Their messages say what to change."""

from pathlib import PurePath


class BatonError(Exception):
    """Base of all exceptions that Baton reports to people or clients on purpose."""


class ConfigError(BatonError):
    """A setting has an invalid value; the message names both, and a config's field by its option.

    With the value None the message names the setting alone.
    """

    def __init__(self, key: str, value: object, why: str) -> None:
        field = key.isidentifier() and key.islower()
        setting = "--" + key.replace("_", "-") if field else key
        value = str(value) if isinstance(value, PurePath) else value
        super().__init__(f"{setting}: {why}" if value is None else f"{setting}: {value!r}: {why}")


class ModelError(BatonError):
    """A model directory is missing, broken, or of an architecture that is not supported."""


class OptionError(ModelError):
    """A model's config asks for an option that our family lacks; transformers' own code may have it."""


class AdapterError(BatonError):
    """An adapter is missing, broken, does not fit the model, or cannot be loaded or unloaded now."""


class NativeError(BatonError):
    """The native operators cannot be compiled or loaded on this machine; the message is the first error."""


class DeviceError(BatonError):
    """The GPU failed, or has no memory left, while a step ran; the results cannot be trusted."""


class RankError(DeviceError):
    """Another rank of the worker is gone or hangs, so that a step's sums cannot be made."""


class DeviceMemoryError(DeviceError):
    """The GPU has no memory left for a step; the message has the sizes, and the settings to change."""


class CapacityError(BatonError):
    """Something can never fit; the message has both sizes."""


class StoreUnavailable(BatonError):
    """Redis does not answer, or answers with an error."""


class StoreRefused(StoreUnavailable):
    """Redis answers, but is unusable: a wrong password, user or database, or an old server."""


class GatewayError(BatonError):
    """A gateway does not answer, or answered with an error, whose message this has."""


class QueueClosed(BatonError):
    """A worker's job stream is gone: that life of the worker is over."""


class MessageError(BatonError):
    """Bytes from a peer are no valid message."""


class SealError(BatonError):
    """A sealed body was made with another secret or for another place, or was altered."""


class IllegalMove(BatonError):
    """A state machine has no such transition."""
