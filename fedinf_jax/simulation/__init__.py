"""The simulation: the method as one compiled program on any devices."""

from fedinf_jax.simulation.adjoint import adjoint as adjoint
from fedinf_jax.simulation.adjoint import adjoint_pass as adjoint_pass
from fedinf_jax.simulation.adjoint import Pass as Pass
from fedinf_jax.simulation.found import Found as Found
from fedinf_jax.simulation.run import Run as Run
from fedinf_jax.simulation.run import State as State
from fedinf_jax.simulation.signs import trust as trust
from fedinf_jax.simulation.simulator import from_exact as from_exact
from fedinf_jax.simulation.simulator import lower as lower
from fedinf_jax.simulation.simulator import simulate as simulate
from fedinf_jax.simulation.simulator import Simulator as Simulator
from fedinf_jax.simulation.simulator import simulator as simulator
from fedinf_jax.simulation.simulator import upload_bytes as upload_bytes
