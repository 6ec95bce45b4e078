"""The names by which clients call a model (`--served-model-name`): the first is its own, the others are aliases."""

from contracts.errors import ConfigError

SERVED_NAMES_OPTION = "--served-model-name"
MAX_SERVED_NAMES = 64
MAX_NAME_CHARACTERS = 256


def served_names(text: str, usual: str) -> tuple[str, ...]:
    """Parses names divided by commas; without any, the model has its `usual` name. Raises `ConfigError`."""
    names = tuple(name.strip() for name in text.split(",")) if text else (usual,)
    if len(names) > MAX_SERVED_NAMES:
        raise ConfigError(SERVED_NAMES_OPTION, text, f"{len(names)} names are more than {MAX_SERVED_NAMES}")
    for name in names:
        if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            why = f"{name!r} is no name of 1 to {MAX_NAME_CHARACTERS} characters; A,B names the model A, and also B"
            raise ConfigError(SERVED_NAMES_OPTION, text, why)
        if names.count(name) > 1:
            raise ConfigError(SERVED_NAMES_OPTION, text, f"{name!r} is there twice")
    return names
