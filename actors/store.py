"""Results of finished units in the run folder: resume, cache and exactly-once at the same time."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq


class UnitStore:
    """A folder of `<key>.parquet`, each written whole and then renamed.

    A unit whose file is there is finished; a half-written file is never seen under its final name. Failures are
    recorded beside it as `<key>.failed`, and tried again by the next run.
    """

    def __init__(self, folder: str | Path, filesystem: pafs.FileSystem | None = None) -> None:
        self._fs = filesystem or pafs.LocalFileSystem()
        self._folder = str(folder)
        self._fs.create_dir(self._folder, recursive=True)

    def finished(self) -> set[str]:
        """Keys of all finished units; a file that a full disk or a power cut left without its end does not count."""
        found = self._fs.get_file_info(pafs.FileSelector(self._folder))
        return {Path(info.path).stem for info in found if info.path.endswith(".parquet") and self._whole(info)}

    def _whole(self, info: pafs.FileInfo) -> bool:
        if info.size < 12:
            return False
        with self._fs.open_input_file(info.path) as file:
            file.seek(info.size - 4)
            return bool(file.read(4) == b"PAR1")

    def path(self, key: str) -> str:
        """Where a unit's table is or will be."""
        return f"{self._folder}/{key}.parquet"

    def read(self, key: str) -> pa.Table:
        """The table of a finished unit, memory-mapped where the file system allows."""
        return pq.read_table(self.path(key), filesystem=self._fs, memory_map=True)

    def write(self, key: str, table: pa.Table) -> None:
        """Stores a finished unit's table; a second write of the same key leaves the same content."""
        partial = f"{self._folder}/.{key}.{os.getpid()}.partial"
        pq.write_table(table, partial, filesystem=self._fs, compression="zstd", compression_level=1)
        self._fs.move(partial, self.path(key))
        failure = f"{self._folder}/{key}.failed"
        if self._fs.get_file_info(failure).type != pafs.FileType.NotFound:
            self._fs.delete_file(failure)

    def fail(self, key: str, log: str) -> None:
        """Records that no attempt succeeded, with the last error's text."""
        with self._fs.open_output_stream(f"{self._folder}/{key}.failed") as stream:
            stream.write(log.encode())

    def failures(self) -> dict[str, str]:
        """Error text by key of the units recorded as failed."""
        found = self._fs.get_file_info(pafs.FileSelector(self._folder))
        texts = {}
        for info in found:
            if info.path.endswith(".failed"):
                with self._fs.open_input_stream(info.path) as stream:
                    texts[Path(info.path).stem] = stream.read().decode()
        return texts
