"""Write days of Criteo's 1TB click log as Parquet shards for the data set `parquet-shards`, a block at a time.

    python examples/criteo_shards.py shards day_0.gz day_1.gz

Each day becomes one shard with the columns of the data set `criteo`. A missing number becomes 0, because a mean needs
all rows; a missing category stays missing, and becomes 'unknown' when it is read.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from dpaudit.engine.data.criteo import CATEGORICAL, LAYOUT, NUMERIC

BLOCK_BYTES = 64 << 20
TYPES = {"label": pa.int8(), **dict.fromkeys(NUMERIC, pa.float32()), **dict.fromkeys(CATEGORICAL, pa.string())}


def write_shard(day: Path, folder: Path) -> Path:
    """Return the shard of a day, a plain or gzip file; each block of it is a row group."""
    blocks = csv.open_csv(
        day,
        csv.ReadOptions(column_names=list(LAYOUT.columns), block_size=BLOCK_BYTES),
        csv.ParseOptions(delimiter="\t", quote_char=False),
        csv.ConvertOptions(column_types=TYPES, strings_can_be_null=True, null_values=[""]),
    )
    shard = folder / f"{day.name.partition('.')[0]}.parquet"
    with pq.ParquetWriter(shard, pa.schema(TYPES), compression="zstd") as writer:
        for block in blocks:
            cells = [pc.fill_null(block[name], 0) if name in NUMERIC else block[name] for name in TYPES]
            writer.write_table(pa.table(cells, pa.schema(TYPES)), row_group_size=len(block))
    return shard


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:]:
        print(write_shard(Path(name), target))
