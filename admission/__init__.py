"""The gateway in front of vLLM. Starts and admits with Postgres, controller and dashboard dead."""

VERSION = "0.1.0"
