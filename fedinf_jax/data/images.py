"""A folder of images: client/label/*.png."""

import pathlib
import warnings

import numpy as np
from PIL import Image
import pyarrow as pa

from fedinf_jax import memory
from fedinf_jax.data import arrays
from fedinf_jax.data import files
from fedinf_jax.data import rows as rows_

SUFFIXES = (
  *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"),
  *(".tif", ".tiff", ".pgm", ".ppm"),
)
_MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB"}


def paths(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the images in a folder's folders, in order."""
  found = (p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
  return sorted(path for path in found if path.name[0] != ".")


def of_folder(folder: pathlib.Path, found: list[pathlib.Path]) -> rows_.Rows:
  """Reads images, all of one size, grey or in colours.

  Args:
    folder: holds a folder per client, and those a folder per label.
    found: `paths` of it.
  """
  for path in found:
    if len(path.relative_to(folder).parts) != 3:
      raise ValueError(
        f"{path}: stands outside client/label/; an image belongs there"
      )
  first = _open(found[0])
  memory.require(f"{folder}: its images", 4 * len(found) * first.size)
  x = np.empty((len(found), *first.shape), np.uint8)
  for i, path in enumerate(found):
    image = first if i == 0 else _open(path)
    if image.shape != first.shape:
      raise ValueError(
        f"{path}: is {_words(image)}, {found[0]} is {_words(first)}; all images"
        " must be alike"
      )
    x[i] = image
  where = lambda name, row: str(found[row])
  return rows_.Rows(
    folder.name,
    arrays.examples(str(folder), x, where),
    _names([path.parent.name for path in found]),
    _names([path.parent.parent.name for path in found]),
    "by folder",
    None,
    "by folder",
    where,
  )


def _open(path):
  """Returns one image as uint8 [H, W, 1 or 3]."""
  files.require_regular(path)
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("error", Image.DecompressionBombWarning)
      with Image.open(path) as image:
        mode = _MODES.get(image.mode)
        if mode is None:
          raise ValueError(f"its mode is {image.mode}, not 8-bit grey or RGB")
        pixels = np.asarray(image.convert(mode))
  except Exception as error:  # A damaged byte leads anywhere.
    raise ValueError(
      f"{path}: cannot be read as an image ({' '.join(str(error).split())});"
      " replace it, or leave it out"
    ) from error
  return pixels.reshape(*pixels.shape[:2], -1)


def _words(image):
  height, width, channels = image.shape
  return f"{height} × {width} {'in grey' if channels == 1 else 'in colours'}"


def _names(values):
  return pa.chunked_array([pa.array(values, pa.string())])
