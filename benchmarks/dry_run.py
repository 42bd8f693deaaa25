"""What a round of FedAMP takes on many devices, or on one that clients visit: compiled here, run nowhere.

python benchmarks/dry_run.py --model resnet18 --clients 1000 --devices 256
python benchmarks/dry_run.py --model cnn --clients 10000 --devices 32
python benchmarks/dry_run.py --model resnet18 --clients 1000 --offload --chunk 8
"""

import argparse
import time

import jax
import jax.numpy as jnp
import optax

SHAPES = {"resnet18": (32, 32, 3), "cnn": (28, 28, 1)}
CLASSES = {"resnet18": 100, "cnn": 10}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="resnet18")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=256)
    parser.add_argument("--examples", type=int, default=600, help="of each client")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--chunk", type=int, default=1, help="clients that a device trains side by side")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16; parameters stay float32")
    parser.add_argument("--offload", action="store_true", help="one device; the clients stay in the host's memory")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 1 if options.offload else options.devices)
    dry_run(options)


def make_task(options: argparse.Namespace):
    """The model at its data set's shape."""
    import fedamp_jax  # after jax knows how many devices it is to have

    dtype = jnp.bfloat16 if options.bfloat16 else jnp.float32
    model = getattr(fedamp_jax.models, options.model)
    return model(CLASSES[options.model], shape=SHAPES[options.model], compute_dtype=dtype)


def dry_run(options: argparse.Namespace) -> None:
    """Compile a round and print what a device holds and receives."""
    import fedamp_jax

    m, n = options.clients, options.examples
    numbers = jax.ShapeDtypeStruct((m,), jnp.int32)
    x = jax.ShapeDtypeStruct((m, n, *SHAPES[options.model]), jnp.uint8)
    y, online = jax.ShapeDtypeStruct((m, n), jnp.int32), jax.ShapeDtypeStruct((m,), bool)
    data = fedamp_jax.Data(x, y, numbers, numbers, numbers, online)
    solver = fedamp_jax.Solver(optax.adam(1e-3), epochs=10, batch_size=options.batch)
    algorithm = fedamp_jax.fedamp(make_task(options), solver, sigma=1e6, self_weight=0.05)
    began = time.perf_counter()
    if options.offload:
        placement = fedamp_jax.placement.InHostMemory(device=jax.devices()[0], chunk=options.chunk)
    else:
        placement = fedamp_jax.placement.OnMesh(mesh=fedamp_jax.placement.client_mesh(), chunk=options.chunk)
    print(fedamp_jax.estimate(algorithm, data, placement))
    print(f"compiled in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
