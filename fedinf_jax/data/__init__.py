"""Federated data sets: sources, partitions and corruptions."""

from fedinf_jax.data import corrupt as corrupt
from fedinf_jax.data import femnist as femnist
from fedinf_jax.data import partition as partition
from fedinf_jax.data.federated import FederatedData as FederatedData
from fedinf_jax.data.glyph_writers import glyphs as glyphs
from fedinf_jax.data.leaf_synthetic import synthetic as synthetic
from fedinf_jax.data.reading import read as read
from fedinf_jax.data.reading import Reading as Reading
