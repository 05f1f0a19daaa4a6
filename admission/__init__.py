"""The gateway in front of vLLM. Starts and admits with Postgres, controller and dashboard dead."""

from compiled.load import prefer

VERSION = "0.1.0"

prefer(__name__, __path__)
