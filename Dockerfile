# One image for every process; the command picks the part.
FROM python:3.11-slim
RUN useradd --system --create-home --home-dir /var/lib/rhodeck rhodeck
WORKDIR /opt/rhodeck
COPY requirements.lock pyproject.toml README.md ./
RUN python -m pip install --no-cache-dir --require-hashes -r requirements.lock
COPY . .
RUN python -m pip install --no-cache-dir --no-deps --no-build-isolation -e .
USER rhodeck
ENTRYPOINT ["rhodeck"]
