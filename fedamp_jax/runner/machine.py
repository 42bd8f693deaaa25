"""Where an experiment trains: devices, host memory, precision, and the cache of compiled programs."""

import os
import platform
from pathlib import Path

import jax

import fedamp_jax
from fedamp_jax import Algorithm, Data, Placement
from fedamp_jax.checks import check_integer
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh, split_cpu
from fedamp_jax.runner.messages import say
from fedamp_jax.runner.options import Machine


def use_devices(options: Machine) -> None:
    """Split a CPU into `--devices`, by default one per core; not when several processes compute together.

    A dry run for an accelerator is done by the CPU, and leaves an accelerator that is here to others.
    """
    if options.dry_run not in (None, "here"):
        if options.devices is not None:
            raise ValueError(f"--dry-run {options.dry_run} names the devices: leave out --devices {options.devices}")
        jax.config.update("jax_platforms", "cpu")
        return
    if options.devices is not None:
        check_integer("--devices", options.devices, low=1)
        cores = os.cpu_count() or 1
        if options.devices > cores and jax.default_backend() == "cpu" and options.devices > jax.device_count():
            raise ValueError(f"--devices {options.devices}: this CPU has {cores} cores, at most a device each")
    if options.offload and (options.devices or 1) > 1:
        raise ValueError(f"--offload is for one device: leave out --offload, or --devices {options.devices}")
    if not jax.distributed.is_initialized():
        split_cpu(options.devices)
    elif options.offload and jax.process_count() > 1:
        raise ValueError("--offload is for a single process: leave out --offload, or run the script without launch")
    if options.devices is not None and options.devices > jax.device_count():
        raise ValueError(f"--devices {options.devices}: there are only {jax.device_count()} devices")
    if options.devices is not None and jax.process_count() > 1 and options.devices < jax.device_count():
        raise ValueError(f"--devices {options.devices}: several processes use all {jax.device_count()}; leave it out")


def placement_for(options: Machine) -> Placement:
    """Where the clients of a run live: on all devices unless the options say otherwise."""
    if options.offload:
        return InHostMemory(device=jax.devices()[0], chunk=options.chunk)
    mesh = client_mesh(options.devices)
    return OnMesh(mesh=mesh, chunk=options.chunk) if mesh.size > 1 else Placement(chunk=options.chunk)


def print_estimate(algorithm: Algorithm, data: Data, placement: Placement) -> None:
    """Print the memory that a round takes."""
    estimate = fedamp_jax.estimate(algorithm, data, placement)
    if jax.process_index() == 0:
        say(f"a round takes {estimate}")


def configure(precision: str, dtype: str = "float32") -> None:
    """Set the precision of matrix products in JAX, and keep compiled programs between runs.

    Says so where `dtype` is bfloat16, and the CPU that trains has no instructions for it.
    """
    if dtype == "bfloat16" and jax.default_backend() == "cpu" and not bfloat16_instructions():
        say("This CPU has no bfloat16 instructions (avx512_bf16, amx_bf16): --dtype bfloat16 is slower than float32.")
    if precision != "default":  # which is JAX's own, or that of JAX_DEFAULT_MATMUL_PRECISION
        jax.config.update("jax_default_matmul_precision", precision)
    cache_compilations()


def bfloat16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU multiplies bfloat16 by itself; also True where the operating system does not tell."""
    return not cpuinfo.exists() or any(name in cpuinfo.read_text().split() for name in ("avx512_bf16", "amx_bf16"))


def cache_compilations() -> None:
    """Keep compiled programs between runs, which saves most of the time before the first round from the second run on.

    Each machine has a folder of its own, as programs are compiled for one CPU's instructions. On a CPU this needs jax
    0.12: with jaxlib 0.10.2, reading a stored program crashed the process (segmentation fault).
    """
    safe = jax.default_backend() != "cpu" or jax.__version_info__ >= (0, 12)
    if safe and not jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(cache / "fedamp_jax" / "compiled" / platform.node()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
