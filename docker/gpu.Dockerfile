# Ectype on NVIDIA GPUs. From the root of the repository: docker build -f docker/gpu.Dockerfile -t ectype-gpu .
# CUDA's libraries come with the extra `gpu`; the host needs the driver and NVIDIA's container runtime.
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /source
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /opt/ectype \
    && /opt/ectype/bin/pip install --no-cache-dir --constraint constraints.txt '.[gpu]' \
    && /opt/ectype/bin/python -m compileall -q /opt/ectype/lib

FROM python:3.11.14-slim-bookworm
RUN useradd --uid 10001 --create-home ectype
COPY --from=build /opt/ectype /opt/ectype
ENV PATH=/opt/ectype/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/ectype
ENTRYPOINT ["ectype"]
CMD ["--help"]
