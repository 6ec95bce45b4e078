"""Names the version of Baton; `pyproject.toml` says the same."""

BATON = "0.1.0"
