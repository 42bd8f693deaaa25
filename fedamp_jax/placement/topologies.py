"""Meshes of accelerators that are not attached: their compilers run on any machine and estimate a program's cost."""

import os
import re
from typing import Any

import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from fedamp_jax.placement.mesh import AXIS
from fedamp_jax.programs.accelerators import ACCELERATORS

# The properties that XLA's GPU backend needs of a device that is not attached.
_H100 = """
gpu_device_info {
  name: "NVIDIA H100 80GB HBM3"  device_vendor: "NVIDIA Corporation"  platform_version: "Compute Capability 9.0a"
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98  threads_per_warp: 32
  threads_per_block_limit: 1024  threads_per_core_limit: 2048  registers_per_core_limit: 65536
  registers_per_block_limit: 65536  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  shared_memory_per_block: 49152  shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448
  l2_cache_size: 52428800  device_memory_size: 84942979072  memory_bandwidth: 3352320000000
  pcie_bandwidth: 34359738368  ecc_enabled: true  device_address_bits: 64
  driver_version: "13.0.0"  runtime_version: "12.8.0"  compile_time_toolkit_version: "12.8.0"  dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

# For libtpu on a machine without a TPU: do not look for the cloud's metadata, nor for other processes that use it.
_NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip


def topology(name: str) -> Mesh:
    """A mesh of accelerators that need not be attached, to compile programs for. Nothing can be run on it.

    Args:
        name: such as `"v5e:2x4"`, eight TPU v5e, or `"h100"`, `"h100:2"`, which takes the pip package
            `fedamp_jax[aot]` for TPUs and `fedamp_jax[cuda]` for GPUs. Kinds of TPU: v2, v3, v4, v5e, v5p and v6e.

    Returns:
        A mesh with the axis `clients`, for `OnMesh(mesh=...)`.

    Raises:
        ValueError: no such kind or shape.
        RuntimeError: the compiler is not installed.
    """
    kind, _, shape = name.lower().partition(":")
    if kind not in ACCELERATORS:
        raise ValueError(f"topology {name!r}: the kinds are {', '.join(ACCELERATORS)}, such as 'v5e:2x4' or 'h100:2'")
    gpu = kind == "h100"
    if not re.fullmatch(r"\d+" if gpu else r"\d+x\d+(x\d+)?", shape or "1" if gpu else shape or "1x1"):
        raise ValueError(f"topology {name!r}: give a shape such as {'h100:2' if gpu else f'{kind}:2x2'}")
    try:
        devices = _gpus(shape or "1") if gpu else _tpus(kind, shape or "1x1")
    except Exception as error:  # of the plugin: each has its own
        extra = "cuda" if gpu else "aot"
        raise RuntimeError(
            f"topology {name!r} cannot be compiled for: {str(error).splitlines()[0]}. The compiler comes with "
            f"pip install 'fedamp_jax[{extra}]'"
        ) from error
    return Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))


def _tpus(kind: str, shape: str) -> list[Any]:
    for variable, value in _NO_TPU_HERE.items():
        os.environ.setdefault(variable, value)
    three = kind in ("v4", "v5p")
    sizes = [int(n) for n in shape.split("x")]
    sizes += [1] * (3 - len(sizes) if three else 0)
    # A host has 2x2 chips, unless there are fewer.
    bounds = tuple(min(2, n) for n in sizes[:2]) + (1,)
    # As JAX runs them: a v4's two cores are one device, with all of the chip's memory.
    cores = {"chip_config_name": "megacore"} if kind == "v4" else {}
    found: Any = topologies.get_topology_desc(
        platform="tpu", topology_name=f"{kind}:{'x'.join(map(str, sizes))}", chips_per_host_bounds=bounds, **cores
    )
    return found.devices


def _gpus(count: str) -> list[Any]:
    found: Any = topologies.get_topology_desc(
        platform="cuda", topology_name="h100", topology=f"1x1x{count}", target_config=_H100
    )
    return found.devices
