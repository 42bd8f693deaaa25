"""Where clients live: on one device, spread over several, or in the host's memory. Methods see one `Placement`."""

from fedamp_jax.placement.host_memory import InHostMemory
from fedamp_jax.placement.mesh import OnMesh, client_mesh, split_cpu
from fedamp_jax.placement.placement import ByParameters, Placement
from fedamp_jax.placement.topologies import topology

__all__ = ["ByParameters", "InHostMemory", "OnMesh", "Placement", "client_mesh", "split_cpu", "topology"]
