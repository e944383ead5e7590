# The image of tensile: the wheel and the dependencies of requirements.run.lock, each by its hash, on a slim Python.
#
#     docker build --tag tensile-kube .     (or podman build, buildah build; `make image` gives version and dates, too)
#
# Nothing of it is written while it runs, so it does with a read-only root, without rights and as any user.

# The Python that the tests run on. Another one from 3.11 on does; a digest (NAME@sha256:…) pins it to the byte.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS wheel
WORKDIR /source
COPY requirements.lock ./
# Only what makes the wheel; of the rest of that file an image needs nothing.
RUN awk '/^[^ ]/ { kept = /^setuptools==/ } kept' requirements.lock > /build.lock \
 && python3 -m venv /build \
 && /build/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check --require-hashes -r /build.lock
COPY pyproject.toml README.md LICENSE ./
COPY tensile ./tensile
# Dates and modes are the same wherever it is built: 2020-01-01, unless the date of the commit is given.
ARG SOURCE_DATE_EPOCH=1577836800
RUN chmod -R u=rwX,go=rX . \
 && SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} /build/bin/python -m pip wheel --quiet --no-cache-dir \
    --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir /wheel .

FROM wheel AS installed
COPY requirements.run.lock /run.lock
# Without pip, which nobody uses there. Bytecode is compiled here, as nothing can be written later, and goes by what it
# was compiled from instead of by dates; by one process with fixed hashes, as it depends on what was compiled before.
RUN python3 -m venv --without-pip /opt/tensile \
 && pip="/build/bin/python -m pip --python /opt/tensile/bin/python --quiet --no-cache-dir --disable-pip-version-check" \
 && $pip install --no-compile --only-binary :all: --no-deps --require-hashes -r /run.lock \
 && $pip install --no-compile --no-index --no-deps /wheel/*.whl \
 && $pip check \
 && PYTHONHASHSEED=0 /opt/tensile/bin/python -m compileall -q -f \
    --invalidation-mode unchecked-hash /opt/tensile/lib \
 && chmod -R u=rwX,go=rX /opt/tensile

FROM ${BASE}
COPY --from=installed /opt/tensile /opt/tensile
ARG VERSION=""
ARG REVISION=""
LABEL org.opencontainers.image.title="tensile" \
      org.opencontainers.image.description="One upper Kubernetes cluster sees several lower clusters as nodes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/tensile/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /
# By number, so that a cluster that refuses root (runAsNonRoot) can see that it is none.
USER 65532:65532
ENTRYPOINT ["tensile"]
