"""A CSV as a table, whose every byte may be wrong."""

from collections.abc import Callable
import csv
import itertools
import pathlib
import reprlib

import pyarrow as pa
import pyarrow.csv as pacsv

from fedinf_jax import text


def read(
  path: pathlib.Path, choose: Callable[[list[str]], str | None]
) -> pa.Table:
  """Reads a CSV, by Arrow.

  Args:
    path: a regular file.
    choose: names of columns -> that of the clients, which stays text ("007").

  Raises:
    ValueError: naming the row that is not UTF-8, or of another length.
  """
  header, delimiter = _header(path)
  client = choose(header)
  try:
    table = pacsv.read_csv(
      path,
      parse_options=pacsv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True
      ),
      convert_options=pacsv.ConvertOptions(
        strings_can_be_null=True,
        column_types={} if client is None else {client: pa.string()},
      ),
    )
    kinds = dict(zip(table.column_names, table.schema.types, strict=False))
  except (pa.ArrowException, UnicodeError) as error:
    _explain(path, delimiter)
    raise ValueError(
      f"{path}: is no CSV ({' '.join(str(error).split())})"
    ) from error
  if any(map(pa.types.is_binary, kinds.values())):
    _explain(path, delimiter)
  return table


def _header(path):
  """Returns a CSV's column names, and what stands between its cells."""
  try:
    with open(path, "rb") as file:
      start = file.read(4)
    with _text(path) as file:
      line = next((line for line in file if line.strip()), None)
  except OSError as error:
    raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
  if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
    raise ValueError(f"{path}: is UTF-16; save it as CSV in UTF-8")
  if line is None:
    raise ValueError(
      f"{path}: is empty; it must have a line of column names, and one per"
      " example"
    )
  delimiter = max(",;\t|", key=line.count)
  try:
    return next(csv.reader([line], delimiter=delimiter)), delimiter
  except csv.Error as error:
    raise ValueError(f"{path}: row 1: {error}") from error


def _text(path):
  return open(path, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _explain(path, delimiter):
  """Raises an error for the first row that is not UTF-8, or of another length.

  Only once Arrow has refused the file: rows are read one by one here.
  """
  header: list[str] = []
  for number, row in _records(path, delimiter):
    header = header or [text.printable(cell) for cell in row]
    for k, cell in enumerate(row):
      if any("\udc80" <= character <= "\udcff" for character in cell):
        column = header[k] if k < len(header) else k + 1
        raise ValueError(
          f"{path}: column {column}, row {number} holds {reprlib.repr(cell)},"
          " which is not UTF-8; save the file as CSV in UTF-8"
        )
    if len(row) != len(header):
      lost = f"there is more after column {header[-1]}"
      if len(row) < len(header):
        lost = f"column {header[len(row)]} is missing"
      raise ValueError(
        f"{path}: row {number} has {len(row)} cells, the first row has"
        f" {len(header)} ({lost}); every row must have as many"
      )


def row_number(path: pathlib.Path, row: int) -> int:
  """Returns the line of a row, as an editor counts: the header is 1."""
  records = _records(path, _header(path)[1])
  return next(itertools.islice(records, row + 1, None), (row + 2, None))[0]


def _records(path, delimiter):
  """Yields rows that are not blank, each with the line it begins on."""
  with _text(path) as file:
    reader = csv.reader(file, delimiter=delimiter)
    while True:
      number = reader.line_num + 1
      try:
        row = next(reader, None)
      except csv.Error as error:
        raise ValueError(f"{path}: row {number}: {error}") from error
      if row is None:
        return
      if row:
        yield number, row
