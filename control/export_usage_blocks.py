"""Blocks of usage records as Postgres copies them, made into the bytes of CSV or Parquet, and added up.

Owns which columns a record has in a file. Numbers stay numbers; text is neutralised for CSV as in every
file of finance's, and left alone in Parquet. Prevents: two lists of columns that drift apart, and a sum
that was taken of other rows than those in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import pyarrow
from pyarrow import compute, csv, parquet

from control.export_parquet import METADATA_KEY
from control.export_table import neutralised
from fleet.errors import Conflict

pa: Any = pyarrow  # no type stubs
pc: Any = compute
pacsv: Any = csv
pq: Any = parquet

BLOCK_BYTES = 16 * 1024 * 1024
ROW_GROUP = 262_144
_TEXT = pa.string()
_NAME = pa.dictionary(pa.int32(), pa.string())  # few values in many rows
_COUNT = pa.int64()
_TIME = pa.timestamp("us", tz="UTC")
#: Cheap proof that no text of a block needs the apostrophe; what may need it is judged one by one.
_PLAIN = r"^[A-Za-z0-9_./:][^;\r\n]*$"


@dataclass(frozen=True, slots=True)
class UsageColumn:
    """A column: its name in the file, where it comes from, its type."""

    name: str
    type: Any
    source: str = ""

    @property
    def sql(self) -> Any:
        """The expression of SQL: constants of this file."""
        return self.source or self.name


COLUMNS = (
    UsageColumn("finished_at", _TIME),
    UsageColumn("gateway", _NAME),
    UsageColumn("spool", _NAME),
    UsageColumn("seq", _COUNT),
    UsageColumn("request_id", _TEXT),
    *(
        UsageColumn(name, _NAME)
        for name in ("tenant", "key_id", "tier", "model", "endpoint", "node", "pool")
    ),
    UsageColumn("outcome", _NAME),
    *(UsageColumn(name, _COUNT) for name in ("prompt_tokens", "cached_tokens", "output_tokens")),
    UsageColumn("exact", pa.bool_()),
    UsageColumn("reserved_tokens", _COUNT),
    UsageColumn("queued_s", pa.float64()),
    UsageColumn("ttft_s", pa.float64()),
    UsageColumn("engine_s", pa.decimal128(20, 6), "round(engine_s::numeric, 6)"),
    UsageColumn("received_at", _TIME),
)


class UsageWriter:
    """Writes blocks and adds up what it wrote."""

    def __init__(self, sink: Any, fmt: Literal["csv", "parquet"], about: Mapping[str, str]) -> None:
        self.records = self.prompt_tokens = self.output_tokens = 0
        self.engine_s = Decimal(0)
        self._is_csv = fmt == "csv"
        metadata = {f"{METADATA_KEY}.{name}": value for name, value in about.items()}
        fields = [pa.field(c.name, _TEXT if self._is_csv and c.type == _NAME else c.type) for c in COLUMNS]
        self._schema = pa.schema(fields, metadata=None if self._is_csv else metadata)
        self._file = pa.PythonFile(sink, mode="w")
        if self._is_csv:
            self._out = pacsv.CSVWriter(self._file, self._schema)
        else:
            self._out = pq.ParquetWriter(self._file, self._schema, compression="zstd")

    def write(self, block: bytes) -> None:
        """Write a block of whole rows. Raises Conflict if one does not hold what its column must."""
        try:
            table = pacsv.read_csv(
                pa.BufferReader(block),
                read_options=pacsv.ReadOptions(
                    column_names=[c.name for c in COLUMNS], block_size=len(block) + 1, use_threads=False
                ),
                parse_options=pacsv.ParseOptions(newlines_in_values=True),
                convert_options=_CONVERT,
            )
        except pa.ArrowInvalid as exc:
            raise Conflict(
                f"a usage record cannot be written: {str(exc)[:200]}", hint="See `rhodeck quality`"
            ) from exc
        if self._is_csv:
            table = pa.Table.from_arrays([_safe(column) for column in table.columns], schema=self._schema)
        self._out.write_table(table.cast(self._schema), *(() if self._is_csv else (ROW_GROUP,)))
        self.records += table.num_rows
        self.prompt_tokens += pc.sum(table.column("prompt_tokens")).as_py() or 0
        self.output_tokens += pc.sum(table.column("output_tokens")).as_py() or 0
        self.engine_s += pc.sum(table.column("engine_s").cast(pa.decimal128(38, 6))).as_py() or Decimal(0)

    def close(self) -> None:
        """Write what ends the file."""
        self._out.close()
        self._file.close()


_CONVERT = pacsv.ConvertOptions(
    column_types={c.name: c.type for c in COLUMNS},
    null_values=[""],
    true_values=["t"],
    false_values=["f"],
    strings_can_be_null=False,
)


def _safe(column: Any) -> Any:
    """Return a column with its text neutralised."""
    if column.type == _NAME:
        found = column.combine_chunks()
        names = [neutralised(name) for name in found.dictionary.to_pylist()]
        return pa.DictionaryArray.from_arrays(found.indices, pa.array(names, _TEXT)).cast(_TEXT)
    if column.type == _TEXT and not pc.all(pc.match_substring_regex(column, _PLAIN)).as_py():
        return pa.array([neutralised(value) for value in column.to_pylist()], _TEXT)
    return column
