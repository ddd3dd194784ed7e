"""Federated data sets: sources, partitions and corruptions."""

from fedinf_jax.data.federated import FederatedData as FederatedData
from fedinf_jax.data.leaf_synthetic import synthetic as synthetic
