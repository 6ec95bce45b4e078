"""Names the failures of Baton, one sentence each; a failure's message says what to change."""


class BatonError(Exception):
    """Is the base of every failure that Baton reports to a person or a client on purpose."""


class ConfigError(BatonError):
    """A setting has a value that cannot work; the message names both, and a field of a config by its option.

    Where there is no value, None, the message names the setting alone.
    """

    def __init__(self, key: str, value: object, why: str) -> None:
        field = key.isidentifier() and key.islower()
        setting = "--" + key.replace("_", "-") if field else key
        super().__init__(f"{setting}: {why}" if value is None else f"{setting}: {value!r}: {why}")


class ModelError(BatonError):
    """A model directory is missing, broken, or of an architecture that is not supported."""


class OptionError(ModelError):
    """Says that a config asks for an option that our family lacks, and that transformers' own code may have."""


class AdapterError(BatonError):
    """An adapter is missing, broken, does not fit the model, or cannot be loaded or unloaded now."""


class NativeError(BatonError):
    """The native operators cannot be compiled or loaded on this machine; the message is the first error."""


class DeviceError(BatonError):
    """The GPU failed, or has no memory left, while a step ran; what it computed cannot be trusted."""


class DeviceMemoryError(DeviceError):
    """The GPU has no memory left for a step; the message has the sizes and the settings to change."""


class CapacityError(BatonError):
    """Something can never fit, whatever finishes before it; the message has both sizes."""


class StoreUnavailable(BatonError):
    """Redis does not answer, or not as it should."""


class StoreRefused(StoreUnavailable):
    """Redis answers, and cannot be used with these settings: a wrong password, user or database, or an old server."""


class GatewayError(BatonError):
    """A gateway does not answer, or answered a request with an error; the message has its sentence."""


class QueueClosed(BatonError):
    """A worker's job stream is gone: that life of the worker is over."""


class MessageError(BatonError):
    """Bytes from a peer are no message that it may send here."""


class SealError(BatonError):
    """A sealed body was made with another secret, for another place, or was altered."""


class IllegalMove(BatonError):
    """A state machine was asked for a transition that its table does not have."""
