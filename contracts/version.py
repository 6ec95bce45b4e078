"""The version of Baton, as in `pyproject.toml`."""

BATON_VERSION = "0.2.0"
