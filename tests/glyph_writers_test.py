"""The drawn writers: images like FEMNIST's, legible, each in one hand."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
from scipy import ndimage

from fedinf_jax.data import glyph_writers

_BAD_ARGUMENTS = (
  ("no_writers", (0, 5), "num_writers is 0; .* >= 1"),
  ("half_a_writer", (1.5, 5), "num_writers is 1.5; .* integer"),
  ("true_writers", (True, 5), "num_writers is True; .* integer"),
  ("no_examples", (2, 0), "examples_per_writer is 0; .* >= 1"),
  ("half_an_example", (2, 2.5), "examples_per_writer is 2.5; .* integer"),
  ("one_without", (2, [3, 0]), "examples_per_writer is 0; .* >= 1"),
  ("too_few", (3, [3, 4]), "examples_per_writer has 2 entries; .* the 3"),
  ("nested", (2, [[3], [4]]), r"examples_per_writer is \[3\]; .* integer"),
  ("negative_seed", (2, 3, -1), "seed is -1; .* integer in 0"),
)


def _by_class(data):
  """Returns [K, 62, 28, 28]: each writer's first drawing of each class."""
  return np.stack(
    [x[np.unique(y, return_index=True)[1], ..., 0] for x, y in data.clients()]
  )


def _pairs(data):
  """Returns both drawings of each class, where n_k is 124: two [K, 62, 784]."""
  x = [x[np.argsort(y, kind="stable")] for x, y in data.clients()]
  return np.moveaxis(np.reshape(x, (len(x), 62, 2, 784)), 2, 0)


class GlyphWritersTest(parameterized.TestCase):
  def test_images_look_like_femnist(self):
    data = glyph_writers.glyphs(6, 70)
    self.assertEqual(data.x.shape, (420, 28, 28, 1))
    self.assertEqual(data.x.dtype, np.float32)
    self.assertEqual(data.num_classes, 62)
    self.assertEqual(data.ids[:2], ("writer_0000", "writer_0001"))
    x = data.x[..., 0]
    self.assertLessEqual(x.max(), 1)
    self.assertGreaterEqual(x.min(), 0)
    for edge in (x[:, 0], x[:, -1], x[:, :, 0], x[:, :, -1]):
      np.testing.assert_array_equal(edge, 1)
    np.testing.assert_array_less(x.min((1, 2)), 0.35)
    # FEMNIST's images have about 30 pixels' worth of ink of 784; no drawing
    # vanishes, none is a blot.
    ink = (1 - x).sum((1, 2))
    self.assertGreater(ink.min(), 5)
    self.assertLess(ink.max(), 130)

  def test_letters_are_centred(self):
    ink = 1 - _by_class(glyph_writers.glyphs(6, 62))
    for axis in (2, 3):
      drawn = (ink > 0.3).any(axis)
      middle = (drawn.argmax(-1) + 27 - drawn[..., ::-1].argmax(-1)) / 2
      self.assertLess(np.abs(middle - 13.5).max(), 3.5)
      self.assertLess(np.abs(middle - 13.5).mean(), 1)

  @parameterized.parameters(("i", 2, 1), ("j", 2, 1), ("0", 1, 2), ("8", 1, 3))
  def test_dots_and_counters_survive(self, letter, strokes, regions):
    drawings = _by_class(glyph_writers.glyphs(9, 62))[
      :, glyph_writers.CLASSES.index(letter)
    ]
    median = lambda of: np.median([ndimage.label(part)[1] for part in of])
    self.assertEqual(median(drawings < 0.5), strokes)
    self.assertEqual(median(drawings > 0.5), regions)

  def test_is_deterministic_and_follows_the_seed(self):
    one, two = (glyph_writers.glyphs(2, 5, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.x, two.x)
    np.testing.assert_array_equal(one.y, two.y)
    other = glyph_writers.glyphs(2, 5, seed=4)
    self.assertGreater(np.abs(one.x - other.x).max(), 0.5)

  def test_a_writer_does_not_depend_on_the_others(self):
    few, more = (
      glyph_writers.glyphs(2, 9),
      glyph_writers.glyphs(4, [9, 9, 3, 5]),
    )
    for k in range(2):
      for a, b in zip(few.client(k), more.client(k), strict=True):
        np.testing.assert_array_equal(a, b)
    self.assertEqual(few.ids, more.ids[:2])

  @parameterized.parameters(
    ([5, 1, 70],), ((5, 1, 70),), (np.array([5, 1, 70]),)
  )
  def test_writers_may_be_unbalanced(self, sizes):
    data = glyph_writers.glyphs(3, sizes)
    np.testing.assert_array_equal(data.num_examples, [5, 1, 70])

  @parameterized.parameters(30, 62, 150)
  def test_classes_are_as_even_as_possible(self, n):
    for _, y in glyph_writers.glyphs(2, n).clients():
      counts = np.bincount(y, minlength=62)
      self.assertLen(counts, 62)
      self.assertLessEqual(counts.max() - counts.min(), 1)

  def test_no_two_drawings_are_the_same(self):
    first, again = _pairs(glyph_writers.glyphs(2, 124))
    np.testing.assert_array_less(0.3, np.abs(first - again).max(-1))
    ours, theirs = first
    np.testing.assert_array_less(0.3, np.abs(ours - theirs).max(-1))

  def test_writers_share_an_alphabet(self):
    """Mean letters of some writers read writers never seen before.

    On FEMNIST this reader is right about half of the time, too.
    """
    data = glyph_writers.glyphs(40, 62)
    x = _by_class(data).reshape(40, 62, 784)
    means = x[:30].mean(0)
    distance = np.linalg.norm(x[30:, :, None] - means, axis=-1)
    right = distance.argmin(-1) == np.arange(62)
    self.assertGreater(right.mean(), 0.4)  # by chance: 0.016

  def test_writers_have_a_hand(self):
    """A letter is nearer to its writer's other one than to other writers'."""
    first, again = _pairs(glyph_writers.glyphs(10, 124))
    distance = np.linalg.norm(first[:, None] - again, axis=-1)  # [10, 10, 62]
    own = np.einsum("kkc->kc", distance)
    self.assertLess(own.mean(), 0.7 * distance.mean())
    nearest = distance.argmin(1) == np.arange(10)[:, None]
    self.assertGreater(nearest.mean(), 0.6)  # by chance: 0.1

  def test_images_stay_float32_in_x64(self):
    was = jax.config.jax_enable_x64
    try:
      for x64 in (False, True):
        jax.config.update("jax_enable_x64", x64)
        self.assertEqual(glyph_writers.glyphs(1, 2).x.dtype, np.float32)
    finally:
      jax.config.update("jax_enable_x64", was)

  @parameterized.named_parameters(*_BAD_ARGUMENTS)
  def test_bad_arguments_are_named(self, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      glyph_writers.glyphs(*arguments)


if __name__ == "__main__":
  absltest.main()
