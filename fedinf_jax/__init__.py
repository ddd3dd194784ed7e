"""Fed-Influence in JAX: what would the model be without client c?"""

from fedinf_jax import starting as starting  # Before anything else.

# isort: split
from fedinf_jax import data as data
from fedinf_jax import federation as federation
from fedinf_jax import metrics as metrics
from fedinf_jax import models as models
from fedinf_jax import presets as presets
from fedinf_jax import report as report
from fedinf_jax import theory as theory
from fedinf_jax import valuation as valuation
from fedinf_jax import version
from fedinf_jax.choice import Choice as Choice
from fedinf_jax.choice import default_estimator as default_estimator
from fedinf_jax.curvature import answer as answer
from fedinf_jax.curvature import dense_hessian as dense_hessian
from fedinf_jax.curvature import exact_difference as exact_difference
from fedinf_jax.curvature import exact_hessian as exact_hessian
from fedinf_jax.curvature import fisher as fisher
from fedinf_jax.curvature import layerwise_hessian as layerwise_hessian
from fedinf_jax.curvature import lowrank_hessian as lowrank_hessian
from fedinf_jax.curvature import server_side as server_side
from fedinf_jax.curvature import truncated as truncated
from fedinf_jax.data import FederatedData as FederatedData
from fedinf_jax.fedavg import FedAvg as FedAvg
from fedinf_jax.guards import lwet as lwet
from fedinf_jax.guards import no_guard as no_guard
from fedinf_jax.influence import estimator as estimator
from fedinf_jax.influence import Health as Health
from fedinf_jax.simulation import adjoint as adjoint
from fedinf_jax.simulation import adjoint_pass as adjoint_pass
from fedinf_jax.simulation import Found as Found
from fedinf_jax.simulation import from_exact as from_exact
from fedinf_jax.simulation import Run as Run
from fedinf_jax.simulation import simulate as simulate
from fedinf_jax.simulation import Simulator as Simulator
from fedinf_jax.simulation import simulator as simulator
from fedinf_jax.simulation import trust as trust
from fedinf_jax.simulation import upload_bytes as upload_bytes
from fedinf_jax.types import Model as Model
from fedinf_jax.valuation.reliability import jitter as jitter
from fedinf_jax.valuation.reliability import reliability as reliability

__version__ = version.VERSION
