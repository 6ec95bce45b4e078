# One image for every service; compose.yaml says which one a container runs.
#   --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu   PyTorch's CPU build instead of the CUDA build
#   --build-arg EXTRAS=ray                                         with Ray, for `baton up --on ray`
FROM python:3.13-slim AS operators
# A CPU's operators, for every level of this architecture.
WORKDIR /app
ENV PYTHONPATH=/app PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY constraints.txt ./
RUN pip install -c constraints.txt msgspec
COPY contracts contracts
COPY infra infra
COPY pricing pricing
COPY engine engine
RUN python -m engine.backends.native.compiling.operators --build --level all --out /operators

FROM python:3.13-slim

WORKDIR /app
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# Triton, which PyTorch's CPU build does without, compiles a part of itself on the host that it runs on. That part needs
# Python's headers too: this base image has them; where another takes Debian's own Python, add python3-dev.
ARG TORCH_INDEX=
RUN case "$TORCH_INDEX" in */cpu) exit 0 ;; esac; \
    apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && test -e "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"

# The dependencies change seldom: a layer of their own, from the two files that decide them. Triton is not named here:
# PyTorch's CUDA build asks for it.
COPY pyproject.toml constraints.txt ./
COPY launcher/__init__.py launcher/
COPY launcher/installing/__init__.py launcher/installing/requirements.py launcher/installing/
ARG EXTRAS=
RUN pip install --no-deps -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && python -m launcher.installing.requirements $EXTRAS > /tmp/requirements.txt \
    && pip install -c constraints.txt -r /tmp/requirements.txt \
    && rm /tmp/requirements.txt

COPY --from=operators /operators /operators
COPY . .
RUN python -m compileall -q . \
    && useradd --create-home --uid 1000 baton \
    && install -d -o baton /home/baton/.cache /home/baton/.cache/huggingface /home/baton/.cache/baton
USER baton
ENV HOME=/home/baton \
    BATON_OPERATORS=/operators \
    GOMP_SPINCOUNT=10000 \
    TOKENIZERS_PARALLELISM=false \
    HF_HUB_DISABLE_TELEMETRY=1 \
    STREAMLIT_SERVER_HEADLESS=true \
    STREAMLIT_BROWSER_GATHER_USAGE_STATS=false \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TRITON_CACHE_DIR=/home/baton/.cache/baton/triton
# compose.yaml gives the command; without one the image says what it can do.
CMD ["python", "-m", "launcher", "--help"]
