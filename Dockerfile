# One image for every process; the command picks the part.
FROM python:3.11-slim AS installed
# A fixed uid, so that secret files can belong to it; the folder, so that a new volume there does.
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/rhodeck rhodeck \
    && install -d -o rhodeck /var/lib/rhodeck/gateway
WORKDIR /opt/rhodeck
COPY requirements.lock pyproject.toml README.md ./
RUN python -m pip install --no-cache-dir --require-hashes -r requirements.lock
COPY . .
RUN python -m pip install --no-cache-dir --no-deps --no-build-isolation -e .

# The hot modules as machine code; the C compiler stays in this stage.
FROM installed AS compiled
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
RUN python -m compiled.build

FROM installed
COPY --from=compiled /opt/rhodeck/build/compiled build/compiled
USER rhodeck
ENTRYPOINT ["rhodeck"]
