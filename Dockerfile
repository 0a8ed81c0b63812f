# docker build -t dpaudit .        then, in a folder of yours: docker run --rm -v "$PWD:/work" dpaudit run spec.yaml
FROM python:3.11.11-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml MANIFEST.in README.md LICENSE ./
COPY dpaudit dpaudit
COPY actors actors
COPY cluster cluster
COPY engine engine
COPY estimators estimators
COPY language_models language_models
COPY mechanisms mechanisms
COPY synthetic_tables synthetic_tables
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.11.11-slim-bookworm
# torch for processors alone; another index brings one for GPUs.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=accounting,text
COPY requirements/constraints.txt /constraints.txt
RUN pip install --no-cache-dir --constraint /constraints.txt --index-url "$TORCH_INDEX" torch
COPY --from=wheel /wheel /wheel
RUN pip install --no-cache-dir --constraint /constraints.txt "dpaudit[$EXTRAS] @ file://$(echo /wheel/*.whl)"
RUN useradd --create-home --uid 1000 --user-group dpaudit && mkdir --mode=1777 /work
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["dpaudit"]
CMD ["--help"]
