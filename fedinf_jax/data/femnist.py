"""FEMNIST as LEAF writes it: one client per writer, 62 characters.

LEAF (Caldas et al., 2018) downloads the images and writes JSON. Read that
directly, or prepare it once for TensorFlow Datasets, which takes a tenth of the
space and a third of the time; both ways give the same arrays.
"""

import itertools
import os
import reprlib

import numpy as np

from fedinf_jax.data import federated
from fedinf_jax.data import femnist_npz
from fedinf_jax.data import files
from fedinf_jax.data import leaf

NUM_CLASSES = 62  # 0–9 digits, 10–35 upper case, 36–61 lower case
IMAGE_SHAPE = (28, 28, 1)
_PIXELS = 28 * 28
_SNAP = 0.02  # grey levels; four decimals are off by at most 0.0128


def from_leaf(
  folder: str | os.PathLike, split: str = "train"
) -> federated.FederatedData:
  """Reads LEAF's JSON: files in sorted order, writers in file order.

  LEAF prints 8-bit greys to a few digits. A pixel within 0.02 of a grey level
  g is read as g / 255, rounded once to float32; others are kept as they are.
  As in LEAF the background is 1 and ink is 0.

  Args:
    folder: holds the *.json of the split, or a subfolder of its name does.
    split: "train", "test" or another subfolder of LEAF's.

  Returns:
    Clients with x float32 [n_k, 28, 28, 1] and y int32 [n_k]; ids are LEAF's.

  Raises:
    ValueError: naming the file, the writer and the field that is wrong.

  Examples:
    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> images = {"x": [[1.0] * 784] * 2, "y": [10, 11]}
    >>> leaf = {"users": ["w"], "num_samples": [2], "user_data": {"w": images}}
    >>> _ = (folder / "all.json").write_text(json.dumps(leaf))
    >>> fi.data.femnist.from_leaf(folder).x.shape
    (2, 28, 28, 1)
  """
  paths = leaf.paths(folder, split)
  clients = {
    writer: (_images(x, where), _labels(y, where))
    for writer, x, y, where in leaf.users(paths, "writer", counted=True)
  }
  return federated.FederatedData.from_clients(clients, num_classes=NUM_CLASSES)


def prepare_tfds(leaf_folder: str | os.PathLike, data_dir: str | os.PathLike):
  """Writes LEAF's train and test, as far as they exist, as a TFDS data set.

  Args:
    leaf_folder: as for `from_leaf`; JSON without subfolders becomes "train".
    data_dir: TFDS's root; the data set gets a folder of its own in it.

  Raises:
    ValueError: as `from_leaf`, or a pixel is no 8-bit grey and could not be
      stored exactly, or the data set is there already: silently keeping or
      replacing it could leave the data of another folder.

  Examples:
    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> images = {"x": [[1.0] * 784] * 2, "y": [10, 11]}
    >>> leaf = {"users": ["w"], "num_samples": [2], "user_data": {"w": images}}
    >>> _ = (folder / "all.json").write_text(json.dumps(leaf))
    >>> fi.data.femnist.prepare_tfds(folder, folder / "tfds")
    Downloading and preparing ... to ...
    Dataset femnist downloaded and prepared to ...
    >>> fi.data.femnist.from_tfds(folder / "tfds").ids
    ('w',)
  """
  import tensorflow_datasets as tfds  # Here because it is slow to import.

  for split in leaf.splits(leaf_folder):
    leaf.paths(leaf_folder, split)
  builder = _tfds_builder(data_dir)
  if builder.data_path.exists():
    raise ValueError(
      f"{builder.data_path}: there is a data set already; delete it or choose"
      " another data_dir"
    )
  builder.download_and_prepare(
    file_format="array_record",
    download_config=tfds.download.DownloadConfig(manual_dir=leaf_folder),
  )


def from_tfds(
  data_dir: str | os.PathLike, split: str = "train"
) -> federated.FederatedData:
  """Reads what `prepare_tfds` wrote: what `from_leaf` gives, exactly.

  Examples:
    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> images = {"x": [[1.0] * 784] * 2, "y": [10, 11]}
    >>> leaf = {"users": ["w"], "num_samples": [2], "user_data": {"w": images}}
    >>> _ = (folder / "all.json").write_text(json.dumps(leaf))
    >>> fi.data.femnist.prepare_tfds(folder, folder / "tfds")
    Downloading and preparing ... to ...
    Dataset femnist downloaded and prepared to ...
    >>> fi.data.femnist.from_tfds(folder / "tfds").num_examples
    array([2])
  """
  builder = _tfds_builder(data_dir)
  splits = list(builder.info.splits)
  if not splits:
    raise ValueError(
      f"{data_dir}: no FEMNIST at {builder.data_path}; prepare_tfds writes it"
    )
  if split not in splits:
    raise ValueError(f"{data_dir}: no split {split!r}; there is {splits}")
  try:
    source = builder.as_data_source(split)
    # One batch: twice as fast as one by one.
    examples = source.__getitems__(range(len(source)))
  except Exception as error:  # Of TFDS, ArrayRecord or zlib.
    raise ValueError(
      f"{builder.data_path}: {error}; delete it and prepare_tfds again"
    ) from error
  clients, ids = [], []
  for writer, group in itertools.groupby(examples, lambda e: e["writer_id"]):
    own = list(group)
    x = from_greys(np.stack([example["image"] for example in own]))
    y = np.array([example["label"] for example in own], np.int32)
    clients.append((x, y))
    ids.append(writer.decode())
  return federated.FederatedData.from_clients(
    clients, ids=ids, num_classes=NUM_CLASSES
  )


def from_npz(
  path: str | os.PathLike, split: str = "train"
) -> federated.FederatedData:
  """Reads writers from an .npz of 8-bit images.

  Args:
    path: a file with `users` [U] and, for each split, `x_train` uint8
      [N, 784] (background 255, ink 0, as in LEAF), `y_train` [N] and
      `u_train` [N], which user wrote it.
    split: the end of those names.

  Returns:
    What `from_leaf` would, writers in the order of `users`; those without
    images in the split are left out.

  Examples:
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "writers.npz")
    >>> white = np.full((2, 784), 255, np.uint8)
    >>> split = {"x_train": white, "y_train": [10, 11], "u_train": [0, 0]}
    >>> np.savez(path, users=["w"], **split)
    >>> fi.data.femnist.from_npz(path).num_examples
    array([2])
  """
  users, x, y, owner = femnist_npz.read(path, split, NUM_CLASSES, _PIXELS)
  images = from_greys(x).reshape(-1, *IMAGE_SHAPE)
  # Writer after writer; within one, in the order of the file.
  order = np.argsort(owner, kind="stable")
  present, starts = np.unique(owner[order], return_index=True)
  rows = np.split(order, starts[1:])
  try:
    return federated.FederatedData.from_clients(
      [(images[r], y[r]) for r in rows],
      ids=[users[u] for u in present],
      num_classes=NUM_CLASSES,
    )
  except ValueError as error:  # Two users of one name.
    raise ValueError(f"{path}: {error}") from error


def from_greys(greys: np.ndarray) -> np.ndarray:
  """Maps grey levels 0 … 255 to float32 g / 255, rounded once.

  Examples:
    >>> fi.data.femnist.from_greys(np.array([0, 51, 255], np.uint8))
    array([0. , 0.2, 1. ], dtype=float32)
  """
  return (greys / np.float64(255)).astype(np.float32)


def _tfds_builder(data_dir):
  from fedinf_jax.data import femnist_tfds  # Here because it imports TFDS.

  # TFDS takes None as its own folder in the user's home.
  data_dir = files.path("data_dir", data_dir)
  try:
    return femnist_tfds.Femnist(data_dir=data_dir, file_format="array_record")
  except Exception as error:  # Of TFDS, for a description that is damaged.
    raise ValueError(
      f"{data_dir}: {error}; delete it and prepare_tfds again"
    ) from error


def _images(rows, where):
  x = np.stack([_pixels(row, f"{where}: x[{i}]") for i, row in enumerate(rows)])
  nearest = np.rint(255 * x)
  greys = nearest.astype(np.uint8)  # uint8 also turns a -0.0 into 0.
  is_grey = np.abs(255 * x - nearest) <= _SNAP
  x = np.where(is_grey, from_greys(greys), x.astype(np.float32))
  return x.reshape(-1, *IMAGE_SHAPE)


def _pixels(row, where):
  """Returns one image as float64 [784]."""
  if not isinstance(row, list) or len(row) != _PIXELS:
    have = len(row) if isinstance(row, list) else reprlib.repr(row)
    raise ValueError(f"{where} must be a list of {_PIXELS} pixels, not {have}")
  if not set(map(type, row)) <= {int, float}:
    raise ValueError(f"{where} has a pixel that is not a number")
  try:
    pixels = np.array(row, np.float64)
  except OverflowError:  # An integer of more than 308 digits.
    pixels = np.array([np.inf])
  if not ((pixels >= 0) & (pixels <= 1)).all():  # False for NaN too.
    raise ValueError(f"{where} has a pixel that is not between 0 and 1")
  return pixels


def _labels(labels, where):
  for i, label in enumerate(labels):
    if type(label) is not int or not 0 <= label < NUM_CLASSES:
      raise ValueError(
        f"{where}: y[{i}] is {reprlib.repr(label)}; a label is an integer from"
        f" 0 to {NUM_CLASSES - 1}"
      )
  return np.array(labels, np.int32)
