"""Arrays from an .npz, whose every byte may be wrong."""

from collections.abc import Sequence
import pathlib
import zipfile

import numpy as np
from numpy.lib import format as npy

from fedinf_jax import memory
from fedinf_jax.data import files


def names(path: pathlib.Path) -> list[str]:
  """Returns what the arrays of an .npz are called."""
  files.require_regular(path)
  try:
    with zipfile.ZipFile(path) as archive:
      found = archive.namelist()
  except Exception as error:  # A damaged byte leads anywhere.
    raise ValueError(f"{path}: is no .npz ({error})") from error
  return [name.removesuffix(".npy") for name in found]


def load(path: pathlib.Path, names: Sequence[str]) -> list[np.ndarray]:
  """Returns the named arrays; refuses what is no .npz that holds them."""
  files.require_regular(path)
  try:
    with zipfile.ZipFile(path) as archive:
      return [_array(archive, name) for name in names]
  # A damaged byte leads anywhere: zlib, struct, the header's syntax, memory.
  except Exception as error:
    raise ValueError(
      f"{path}: is no .npz with {', '.join(names)} ({error})"
    ) from error


def _array(archive, name):
  """Reads one array, whose header must claim what there is, and no more."""
  info = archive.getinfo(f"{name}.npy")
  memory.require(f"{name}: it", info.file_size)
  with archive.open(info) as member:
    version = npy.read_magic(member)
    read_header = {
      (1, 0): npy.read_array_header_1_0,
      (2, 0): npy.read_array_header_2_0,
    }[version]
    shape, _, dtype = read_header(member)
    if dtype.hasobject:
      raise ValueError(
        f"{name}: it holds Python objects, not numbers or text; text must be"
        " an array of dtype str"
      )
    claimed = dtype.itemsize
    for side in shape:
      claimed *= side  # Python's integers do not overflow.
    held = info.file_size - member.tell()
    if claimed != held:
      raise ValueError(
        f"{name}: the header claims {claimed:,} bytes, there are {held:,}"
      )
  with archive.open(info) as member:
    return npy.read_array(member, allow_pickle=False)
