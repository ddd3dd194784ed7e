"""A TensorFlow Datasets builder for LEAF's FEMNIST; needs no TensorFlow.

Importing this imports TFDS, which is slow; `femnist.prepare_tfds` and
`femnist.from_tfds` do it when called.
"""

import string

import numpy as np
import tensorflow_datasets as tfds

from fedinf_jax.data import femnist
from fedinf_jax.data import leaf


class Femnist(tfds.core.GeneratorBasedBuilder):
  """Images in LEAF's order: writer after writer, never shuffled."""

  VERSION = tfds.core.Version("1.0.0")
  # Only finds checksums of downloads, of which there are none. TFDS 4.9.10's
  # own needs importlib_resources, undeclared (tensorflow/datasets#11212).
  code_path = None
  MANUAL_DOWNLOAD_INSTRUCTIONS = """
  Run LEAF's data/femnist/preprocess.sh (https://github.com/TalwalkarLab/leaf)
  and pass as manual_dir the folder data/femnist/data it fills, whose
  subfolders train and test hold *.json.
  """

  def _info(self):
    return tfds.core.DatasetInfo(
      builder=self,
      description=(
        "Handwritten characters of LEAF's FEMNIST, by writer. Background 255,"
        " ink 0."
      ),
      features=tfds.features.FeaturesDict(
        {
          # Not features.Image: that one encodes arrays with TensorFlow.
          "image": tfds.features.Tensor(
            shape=femnist.IMAGE_SHAPE, dtype=np.uint8, encoding="zlib"
          ),
          "label": tfds.features.ClassLabel(
            names=string.digits
            + string.ascii_uppercase
            + string.ascii_lowercase
          ),
          "writer_id": tfds.features.Text(),
        }
      ),
      homepage="https://leaf.cmu.edu",
      disable_shuffling=True,
    )

  def _split_generators(self, dl_manager):
    folder = dl_manager.manual_dir
    return {
      split: self._generate_examples(folder, split)
      for split in leaf.splits(folder)
    }

  def _generate_examples(self, folder, split):
    data = femnist.from_leaf(folder, split)
    keys = iter(range(len(data.x)))
    for writer, (x, y) in zip(data.ids, data.clients(), strict=True):
      greys = np.rint(255 * x).astype(np.uint8)
      if not np.array_equal(femnist.from_greys(greys), x):
        raise ValueError(
          f"{folder}: {split}: writer {writer!r}: x has a pixel that is not a"
          " grey level g / 255; stored as uint8 it would change, so read this"
          " folder with from_leaf"
        )
      for image, label in zip(greys, y, strict=True):
        example = {"image": image, "label": label, "writer_id": writer}
        yield next(keys), example
