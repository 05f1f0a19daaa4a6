"""Alembic migrations of the control database."""
