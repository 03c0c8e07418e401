# loadgen as an image: controller, workers and simulator are the same one. `docker build --tag llm-loadgen:0.1.0 .`
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /build
RUN python -m venv /venv
COPY k8s/requirements.txt .
RUN /venv/bin/pip install --no-cache-dir --no-deps --requirement requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY loadgen loadgen
COPY server server
RUN /venv/bin/pip install --no-cache-dir --no-deps . && /venv/bin/pip check

FROM python:3.11.13-slim-bookworm
COPY --from=build /venv /venv
# A number, since Kubernetes cannot tell from a name whether it is root.
RUN mkdir --parents /data/runs && chown --recursive 10001:10001 /data
USER 10001:10001
WORKDIR /data
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
ENTRYPOINT ["loadgen"]
