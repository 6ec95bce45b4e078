"""Names the version of Baton; `pyproject.toml` says the same."""

BATON_VERSION = "0.1.0"
