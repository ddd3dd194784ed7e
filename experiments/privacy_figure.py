"""The picture of `experiments.privacy`: images, and what attacks found."""

import io

import numpy as np
from PIL import Image
from PIL import ImageDraw
from PIL import ImageFont

SIDE = 28  # pixels of an image
SCALE = 2
GAP = 4
LABEL = 300  # pixels of the column of labels


def png(rows: list[tuple[str, np.ndarray, np.ndarray | None]]) -> bytes:
  """Draws a row of images for each attack.

  Args:
    rows: label, images [N, 28, 28, 1] and, but for the originals, the PSNR of
      each [N], the mean of which is written beside it.
  """
  count = max(len(images) for _, images, _ in rows)
  cell = SIDE * SCALE + GAP
  width = LABEL + count * cell + GAP
  sheet = Image.new("L", (width, len(rows) * cell + GAP), 255)
  draw = ImageDraw.Draw(sheet)
  font = ImageFont.load_default(13)
  for i, (label, images, quality) in enumerate(rows):
    top = GAP + i * cell
    if quality is not None:
      label = f"{label}: {np.mean(quality):.1f} dB"
    draw.text((GAP, top + cell // 2), label, 0, font, anchor="lm")
    for j, image in enumerate(images):
      grey = np.clip(np.asarray(image).reshape(SIDE, SIDE), 0, 1)
      tile = Image.fromarray((255 * grey).round().astype(np.uint8))
      tile = tile.resize((SIDE * SCALE, SIDE * SCALE), Image.Resampling.NEAREST)
      left = LABEL + j * cell
      sheet.paste(tile, (left, top))
      box = left - 1, top - 1, left + SIDE * SCALE, top + SIDE * SCALE
      draw.rectangle(box, outline=200)
  # A few greys say the same in a third of the bytes.
  file = io.BytesIO()
  sheet.quantize(16).save(file, "PNG", optimize=True)
  return file.getvalue()
