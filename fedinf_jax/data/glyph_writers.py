"""Drawn letters by made-up writers: a stand-in for FEMNIST, never downloaded.

A writer takes the shapes of the letters from two of the fonts that matplotlib
ships, thins them to their centre lines, and draws those with a pen, a slant,
a size and a warp of its own; no two of its drawings of a letter are the same.
"""

from collections.abc import Sequence
import functools
import pathlib
import string

import numpy as np
from PIL import Image
from PIL import ImageDraw
from PIL import ImageFont
import scipy

from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax import rng
from fedinf_jax.data import federated
from fedinf_jax.data import packing

# LEAF's order of FEMNIST's classes.
CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase

# Named, not listed from the directory: a matplotlib with one font more must
# not change anybody's data. Thinned, a bold face is its regular one again,
# only with serifs long enough to close a v or an n: none is here.
_FONTS = (
  *("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSansMono"),
  *("DejaVuSansMono-Oblique", "DejaVuSerif", "DejaVuSerif-Italic"),
  *("STIXGeneral", "STIXGeneralItalic", "cmr10", "cmss10", "cmti10", "cmtt10"),
)
_SIDE = 28  # pixels of an image
_FIELD = 96  # pixels of the finer square that a font's glyphs are kept in,
_CAP = 44  # and the height of its capitals there


def glyphs(
  num_writers: int,
  examples_per_writer: int | Sequence[int],
  seed: int = 0,
) -> federated.FederatedData:
  """Draws FEMNIST-like letters and digits by writers with styles of their own.

  Writer i depends on the seed, on i and on its own number of examples, not on
  how many writers there are. The numbers are those of one version of Pillow:
  another FreeType may round the edge of a glyph another way.

  Args:
    num_writers: K.
    examples_per_writer: n_k: one for all, or K of them. A writer's classes
      are as even as n_k allows: shuffled repetitions of the 62.
    seed: a non-negative integer.

  Returns:
    x float32 [N, 28, 28, 1] from ink 0 to paper 1; y in 0 … 61, digits, then
    upper case, then lower case; ids writer_0000, writer_0001, …

  Examples:
    >>> fi.data.glyphs(2, 3, seed=0).x.shape
    (6, 28, 28, 1)
  """
  checks.positive_integer("num_writers", num_writers)
  checks.seed(seed)
  sizes = _sizes(num_writers, examples_per_writer)
  writers = [
    _draw(rng.host_generator(seed, rng.Stream.GLYPHS, i), n)
    for i, n in enumerate(sizes)
  ]
  ids = [f"writer_{i:04d}" for i in range(num_writers)]
  return federated.FederatedData.from_clients(writers, ids, len(CLASSES))


def _sizes(num_writers, examples_per_writer):
  """Returns each writer's number of examples."""
  if isinstance(examples_per_writer, Sequence | np.ndarray):
    sizes = packing.listed("examples_per_writer", examples_per_writer)
    if len(sizes) != num_writers:
      raise ValueError(
        f"examples_per_writer has {len(sizes)} entries; it must be one integer"
        f" or one for each of the {num_writers} writers"
      )
  else:
    sizes = [examples_per_writer]
  for n in sizes:
    checks.positive_integer("examples_per_writer", n)
  total = sum(map(int, sizes)) * (num_writers // len(sizes))
  memory.require(
    f"num_writers is {num_writers}: {total:,} images", 4 * _SIDE**2 * total
  )
  return sizes if len(sizes) == num_writers else sizes * num_writers


def _draw(draw, n):
  """Draws a writer's style, then its n examples: (x [n, 28, 28, 1], y [n])."""
  waves = _waves()
  fonts = draw.choice(len(_FONTS), 2, replace=False)
  font_of_class = draw.integers(0, 2, len(CLASSES))
  cap = draw.uniform(10, 12.5)  # the height of a capital, in pixels
  pen = draw.uniform(0.12, 0.16) * cap  # finer on small letters: no blots
  slant, aspect = draw.uniform((-0.2, 0.85), (0.3, 1.15))
  warp = draw.uniform(-1.3, 1.3, (1, 2, len(waves)))
  warp_of_class = draw.uniform(-1, 1, (len(CLASSES), 2, len(waves)))

  rounds = -(-n // len(CLASSES))
  y = np.concatenate([draw.permutation(len(CLASSES)) for _ in range(rounds)])
  y = y[:n]
  turn = draw.uniform(-0.1, 0.1, n)
  shift = draw.uniform(-0.5, 0.5, (n, 2, 1))
  warp = warp + warp_of_class[y] + draw.uniform(-0.5, 0.5, (n, 2, len(waves)))

  # Where on the glyph each pixel of the image lies. Axes are (down, right).
  grid = np.indices((_SIDE, _SIDE)).reshape(2, -1) - (_SIDE - 1) / 2
  turned = np.array(
    [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
  )
  upright = np.array([[1, 0], [slant / aspect, 1 / aspect]])
  affine = upright @ np.moveaxis(turned, 2, 0) * (_CAP / cap)  # [n, 2, 2]
  at = affine @ (grid + shift + warp @ waves) + (_FIELD - 1) / 2  # [n, 2, 784]
  down, right = np.moveaxis(np.clip(at, 0, _FIELD - 1), 1, 0)

  lines = np.stack([_centre_lines(_FONTS[f]) for f in fonts])
  lines = lines[font_of_class, np.arange(len(CLASSES))]
  distance = scipy.ndimage.map_coordinates(
    lines.reshape(-1, _FIELD), (down + _FIELD * y[:, None], right), order=1
  ) * (cap / _CAP)
  # A pixel half covered by the pen's edge is half black.
  x = np.clip(distance - pen / 2 + 0.5, 0, 1)
  return x.reshape(n, _SIDE, _SIDE, 1).astype(np.float32), y


@functools.cache
def _waves():
  """Returns [m, 784] long waves: a standard normal sum of them has rms 1."""
  t = (np.arange(_SIDE) + 0.5) / _SIDE
  modes = [(p, q) for p in range(5) for q in range(5) if 1 <= p + q <= 4]
  waves = np.array(
    [
      np.outer(np.cos(np.pi * p * t), np.cos(np.pi * q * t)).ravel() / (p + q)
      for p, q in modes
    ]
  )
  return waves / np.sqrt((waves**2).sum(0).mean())


@functools.cache
def _centre_lines(name):
  """Returns float32 [62, 96, 96]: distances to the centre lines of a font."""
  import matplotlib  # Slow to import, and nothing else here needs it.

  path = pathlib.Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
  # The layout engine is named because Pillow's default depends on its build.
  font = ImageFont.truetype(path, 100, layout_engine=ImageFont.Layout.BASIC)
  font = font.font_variant(size=100 * _CAP / -font.getbbox("H", anchor="ls")[1])
  shapes = []
  for letter in CLASSES:
    left, top, right, bottom = map(int, font.getbbox(letter, anchor="ls"))
    width, height = right - left, bottom - top
    image = Image.new("L", (width, height))
    ImageDraw.Draw(image).text((-left, -top), letter, 255, font, anchor="ls")
    # Hands draw M and W narrower than fonts do; wide ones would be cut off.
    width = min(width, int(1.2 * _CAP))
    field = Image.new("L", (_FIELD, _FIELD))
    corner = (_FIELD - width) // 2, (_FIELD - height) // 2
    field.paste(image.resize((width, height)), corner)
    shapes.append(np.asarray(field) > 127)
  lines = _thin(np.stack(shapes))
  return np.stack(
    [
      scipy.ndimage.distance_transform_edt(~line).astype(np.float32)
      for line in lines
    ]
  )


def _thin(shapes):
  """Thins bool [..., H, W] shapes to lines one pixel wide (Zhang-Suen, 1984).

  A uniform pen along these lines neither loses a font's hairlines nor blots
  its stems. No shape may touch the frame.
  """
  before = None
  while before is None or (shapes != before).any():
    before = shapes
    for side in (0, 4):
      near = _neighbours(shapes)
      count = near.sum(0, np.int8)
      rises = (~near & np.roll(near, -1, 0)).sum(0, np.int8)
      a, b, c, d = (near[(side + j) % 8] for j in (0, 2, 4, 6))
      spare = (count >= 2) & (count <= 6) & (rises == 1)
      shapes = shapes & ~(spare & ~(b & c & (a | d)))
  # Shorten loose ends, which makes serifs small; the dot of an i stays.
  for _ in range(3):
    count = _neighbours(shapes).sum(0, np.int8)
    inner = _neighbours(shapes & (count > 1)).any(0)
    shapes = shapes & ~((count == 1) & inner)
  return shapes


def _neighbours(shapes):
  """Returns [8, ..., H, W]: each pixel's neighbours, clockwise from north."""
  ring = ((1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1))
  return np.array([np.roll(shapes, by, (-2, -1)) for by in ring])
