"""Fed-Influence in JAX: what would the model be without client c?"""

from fedinf_jax import data as data
from fedinf_jax import metrics as metrics
from fedinf_jax import models as models
from fedinf_jax.data import FederatedData as FederatedData
from fedinf_jax.fedavg import FedAvg as FedAvg
from fedinf_jax.simulation import Run as Run
from fedinf_jax.simulation import simulate as simulate
from fedinf_jax.simulation import Simulator as Simulator
from fedinf_jax.simulation import simulator as simulator
from fedinf_jax.types import Model as Model
