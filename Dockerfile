# bpr as a service: `docker build -t bpr .`, then
#   docker run --rm --read-only -p 8080:8080 -e BPR_TOKEN -v "$PWD/docs.bpr:/data/index.bpr:ro" bpr
# Other verbs: docker run --rm -v "$PWD:/data" --user "$(id -u)" bpr index passages.jsonl -o docs.bpr

FROM python:3.12-slim AS build
# The compiler of the day will do, and stays behind in this stage.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake g++ ninja-build \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt requirements-serve.txt README.md LICENSE ./
COPY native native
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && python -m venv /opt/bpr \
    && /opt/bpr/bin/pip install --no-cache-dir --require-hashes -r requirements-serve.txt \
    && /opt/bpr/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.12-slim
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin bpr
COPY --from=build /opt/bpr /opt/bpr
ENV PATH=/opt/bpr/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
EXPOSE 8080
HEALTHCHECK --start-period=30s --interval=10s --timeout=3s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["bpr"]
CMD ["serve", "/data/index.bpr", "--host", "0.0.0.0"]
