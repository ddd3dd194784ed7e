"""Linear algebra that JAX does not have: low rank, and products only."""
