"""Curvatures (Section 4.2): how local training carries influence."""

from fedinf_jax.curvature.fisher import fisher as fisher
from fedinf_jax.curvature.hessians import dense_hessian as dense_hessian
from fedinf_jax.curvature.hessians import lowrank_hessian as lowrank_hessian
from fedinf_jax.curvature.interactive import (
  exact_difference as exact_difference,
)
from fedinf_jax.curvature.interactive import exact_hessian as exact_hessian
from fedinf_jax.curvature.interactive import (
  layerwise_hessian as layerwise_hessian,
)
from fedinf_jax.curvature.server_side import server_side as server_side
from fedinf_jax.curvature.wall import answer as answer
from fedinf_jax.curvature.wall import truncated as truncated
