"""A table as Parquet: decimals as decimal128, instants as UTC timestamps, what it is in the metadata.

Text is the text itself: nothing that reads Parquet runs it. Prevents: money as binary fractions, and a
file nobody can tell the month of once it was renamed.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow
from pyarrow import parquet

from control.export_table import PRECISION, Cell, Column, Table, rounded

pa: Any = pyarrow  # no type stubs
pq: Any = parquet
METADATA_KEY = "rhodeck"


def parquet_bytes(table: Table, about: Mapping[str, str | int]) -> bytes:
    """Return the table as Parquet; `about` stands in the schema's metadata, each under `rhodeck.NAME`."""
    metadata = {f"{METADATA_KEY}.{name}": str(value) for name, value in about.items()}
    fields = [pa.field(column.name, arrow_type(column)) for column in table.columns]
    schema = pa.schema(fields, metadata=metadata)
    cells = zip(*table.rows, strict=True) if table.rows else [()] * len(fields)
    arrays = [
        pa.array([_cell(column, cell) for cell in held], type=field.type)
        for field, column, held in zip(fields, table.columns, cells, strict=True)
    ]
    out = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), out, compression="zstd")
    return out.getvalue()


def _cell(column: Column, cell: Cell) -> Cell:
    return rounded(column, cell) if isinstance(cell, Decimal) else cell  # Arrow refuses to round


def amounts(body: bytes, names: Sequence[str]) -> list[Decimal]:
    """Return the first column of `names` that the file has."""
    table = pq.read_table(io.BytesIO(body))
    return next(table.column(name).to_pylist() for name in names if name in table.column_names)


def arrow_type(column: Column) -> Any:
    """Return the Arrow type of a column."""
    match column.kind:
        case "integer":
            return pa.int64()
        case "decimal":
            return pa.decimal128(PRECISION, column.scale)
        case "time":
            return pa.timestamp("us", tz="UTC")
        case "month" | "text":
            return pa.string()
