"""Wrong versions of the package, each of which some test has to notice. Prints those that none does.

    python tests/mutations.py                # all of them, two at a time
    python tests/mutations.py prox mix       # those whose name contains one of the words
    python tests/mutations.py --list

A mutation is an edit of one file. It is applied to a copy of the checkout, and the tests that should notice are run there
until the first failure, after they have passed without it. The exit code is the number of survivors, and of selections
of tests that fail without any mutation.
"""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FILES = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]


class Mutation(NamedTuple):
    """Attributes: name: unique. file: below the root. old: text that occurs once. new: what replaces it.
    tests: arguments of pytest."""

    name: str
    file: str
    old: str
    new: str
    tests: str


EXAM = "tests/test_algorithms.py -k"
ORACLES = "tests/algorithms/test_oracles.py -k"

MUTATIONS = [
    # Local training.
    Mutation("prox-halved", "fedamp_jax/engine/solver.py", "weight * (w - c)", "weight / 2 * (w - c)", f"{ORACLES} fedamp"),
    Mutation("prox-sign", "fedamp_jax/engine/solver.py", "weight * (w - c)", "weight * (c - w)", f"{ORACLES} fedprox"),
    Mutation("prox-detached", "fedamp_jax/engine/solver.py", "if penalty is not None:", "if False:", f"{ORACLES} fedamp"),
    Mutation("correction-sign", "fedamp_jax/engine/solver.py", "grads = jax.tree.map(jnp.add, grads, shift)",
             "grads = jax.tree.map(jnp.subtract, grads, shift)", f"{ORACLES} scaffold"),
    Mutation("frozen-trained", "fedamp_jax/engine/solver.py", "trained, frozen = partition(start.params, trainable)",
             "trained, frozen = partition(start.params, None)", f"{ORACLES} fedbabu"),
    Mutation("optimizer-never-kept", "fedamp_jax/engine/solver.py", "opt_state if solver.keep_optimizer else ()", "()",
             f"{EXAM} 'resumed and separate'"),
    Mutation("optimizer-state-ignored", "fedamp_jax/engine/solver.py",
             "optimizer_state if solver.keep_optimizer else optimizer.init(trained)", "optimizer.init(trained)",
             f"{EXAM} 'kept_optimizer and separate'"),
    Mutation("loss-summed", "fedamp_jax/engine/solver.py", "return local, total / jnp.maximum(steps, 1).astype(jnp.float32)",
             "return local, total", "tests/engine/test_solver.py tests/engine/test_clients.py"),
    Mutation("one-order-for-all-passes", "fedamp_jax/engine/minibatches.py", "client.placement.platform, t // per_pass)", "client.placement.platform)",
             "tests/engine/test_solver.py"),
    Mutation("order-of-the-longest", "fedamp_jax/engine/minibatches.py", "shuffled(rows, client.size, seed", "shuffled(rows, jnp.int32(client.longest), seed",
             "tests/engine/test_solver.py"),
    Mutation("pair-disagrees-on-its-swap", "fedamp_jax/kernels/shuffle.py", "jnp.maximum(row, partner) ^", "row ^", "tests/kernels/test_shuffle.py"),
    Mutation("one-pivot-for-all-rounds", "fedamp_jax/kernels/shuffle.py", "first + r.astype(jnp.uint32)", "first + 0 * r.astype(jnp.uint32)", "tests/kernels/test_shuffle.py"),
    Mutation("a-row-too-late", "fedamp_jax/engine/minibatches.py", "at = client.start + rows", "at = client.start + rows + 1", "tests/test_algorithms.py -k no_other_examples"),
    Mutation("start-not-added", "fedamp_jax/engine/minibatches.py", "at = client.start + rows", "at = rows", "tests/test_algorithms.py -k no_other_examples"),
    Mutation("start-of-all-devices", "fedamp_jax/placement/mesh.py", "data._replace(start=data.start - before)", "data", "tests/test_algorithms.py -k eight_devices"),
    Mutation("view-from-its-beginning", "fedamp_jax/layout.py", "shuffled(view.first + rows, ", "shuffled(rows, ", "tests/engine/test_clients.py -k split_client"),
    Mutation("views-outside-in", "fedamp_jax/layout.py", "reversed(views)", "views", "tests/engine/test_clients.py -k views"),
    Mutation("host-chunk-starts", "fedamp_jax/placement/visits.py", "np.resize(begin, chunk).astype(np.int32)", "np.zeros(chunk, np.int32)", "tests/placement/test_host_memory.py"),
    Mutation("padding-not-masked", "fedamp_jax/engine/minibatches.py", "real = rows < client.size", "real = rows < client.longest",
             f"{EXAM} 'padding and separate'"),
    Mutation("last-batch-dropped", "fedamp_jax/engine/minibatches.py", "per_pass = (client.size + width - 1) // width",
             "per_pass = jnp.maximum(client.size // width, 1)", f"{ORACLES} separate"),
    Mutation("full-gradient-of-block-means", "fedamp_jax/engine/minibatches.py", "jax.tree.map(lambda a, b: a + share * b, grads, g)",
             "jax.tree.map(lambda a, b: a + b, grads, g)", "tests/engine/test_solver.py"),
    Mutation("mean-loss-unweighted", "fedamp_jax/engine/minibatches.py", "return total + share_of(batch, client) * task.loss",
             "return total + task.loss", "tests/engine/test_clients.py"),
    Mutation("step-key-constant", "fedamp_jax/engine/minibatches.py", "jax.random.fold_in(key_steps, t))", "key_steps)",
             "tests/engine/test_solver.py"),
    Mutation("solver-shuffles", "fedamp_jax/engine/solver.py", "epochs=epochs, shuffle=solver.shuffle)", "epochs=epochs)", "tests/engine/test_solver.py -k unshuffled_training"),
    Mutation("pfedme-shuffles", "fedamp_jax/algorithms/pfedme.py", "shuffle=solver.shuffle)", "shuffle=True)", "tests/engine/test_solver.py -k pfedme"),
    Mutation("value-without-penalty", "fedamp_jax/engine/solver.py", "[] if penalty is None else [penalty.value(combine(trained, frozen))]", "[]", "tests/engine/test_solver.py -k lbfgs"),
    Mutation("value-without-correction", "fedamp_jax/engine/solver.py", "parts += jax.tree.leaves(jax.tree.map(lambda w, c: jnp.sum(w * c), trained, shift))", "pass", "tests/engine/test_solver.py -k lbfgs"),
    Mutation("prox-value", "fedamp_jax/engine/solver.py", "return self.weight / 2 * sum(", "return self.weight * sum(", "tests/engine/test_solver.py -k values_of"),
    # Clients.
    Mutation("key-by-position", "fedamp_jax/engine/clients.py", "jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(data.id)",
             "jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(jnp.arange(len(data.id)))",
             f"{EXAM} 'permuted and separate'"),
    Mutation("rejected-becomes-zero", "fedamp_jax/engine/clients.py", "jnp.where(fine & took_part, a, b), new, keep_i)",
             "jnp.where(fine & took_part, a, jnp.where(took_part, jnp.zeros_like(b), b)), new, keep_i)",
             f"{EXAM} diverge"),
    Mutation("offline-becomes-trained", "fedamp_jax/engine/clients.py", "jnp.where(fine & took_part, a, b), new, keep_i)",
             "jnp.where(fine, a, b), new, keep_i)", f"{EXAM} absent"),
    Mutation("rejected-kept", "fedamp_jax/engine/clients.py", "chosen, jnp.where(took_part, loss, 0.0), took_part & ~fine",
             "chosen, jnp.where(took_part, loss, 0.0), took_part & False", f"{EXAM} diverge"),
    Mutation("epochs-upper-end", "fedamp_jax/engine/clients.py", "low, high + 1, jnp.int32", "low, high, jnp.int32", "tests/engine/test_clients.py tests/engine/test_solver.py"),
    Mutation("split-client-overlaps", "fedamp_jax/engine/validation.py", "some(client.size - training, training)", "some(jnp.zeros_like(count), training)",
             f"{ORACLES} fedrecon"),
    Mutation("cross-losses-turned", "fedamp_jax/engine/validation.py", "data.placement.for_each_pair(loss, data, models, work=work)",
             "data.placement.for_each_pair(loss, data, models, work=work).T", "tests/engine/test_clients.py"),
    # Server.
    Mutation("mix-turned", "fedamp_jax/engine/server.py", '"ij,jd->id"', '"ji,jd->id"', f"{ORACLES} fedamp"),
    Mutation("mean-multiplies", "fedamp_jax/engine/server.py", "where(total > 0, mean, otherwise)", "mean", f"{EXAM} absent"),
    Mutation("mean-uniform", "fedamp_jax/engine/server.py", "jnp.where(data.online & ~info.rejected, data.size, 0)",
             "jnp.where(data.online & ~info.rejected, 1, 0)", f"{ORACLES} fedavg"),
    Mutation("rejected-counts", "fedamp_jax/engine/server.py", "data.online & ~info.rejected, data.size", "data.online, data.size",
             f"{EXAM} diverge"),
    Mutation("statistics-turned", "fedamp_jax/engine/server.py", 'if stats == "local":\n        return lambda', 'if stats != "local":\n        return lambda', "tests/test_trees.py -k statistics"),
    Mutation("distances-tile", "fedamp_jax/kernels/distances.py", ".at[lower[::-1]].set(total.swapaxes(1, 2))", ".at[lower[::-1]].set(total)",
             "tests/kernels/test_distances.py"),
    Mutation("distances-one-order", "fedamp_jax/kernels/distances.py", "return lower + lower.T", "return lower", "tests/kernels/test_distances.py"),
    Mutation("distances-float32", "fedamp_jax/kernels/distances.py", "gram + rows[p] @ rows[: p.stop].T for",
             "gram + (rows[p].astype(jnp.float32) @ rows[: p.stop].T.astype(jnp.float32)).astype(jnp.float64) for",
             "tests/kernels/test_distances.py"),
    Mutation("distances-platform", "fedamp_jax/platforms.py", '"window", "differences"', '"window", "gram"', "tests/kernels/test_distances.py"),
    Mutation("distances-vmap", "fedamp_jax/kernels/distances.py", "@sequential_vmap\n", "", "tests/kernels/test_distances.py"),
    Mutation("distances-all-columns", "fedamp_jax/kernels/distances.py", "max(_BLOCK_COLUMNS, _BLOCK_NUMBERS // m)", "width",
             "tests/kernels/test_distances.py"),
    Mutation("cosine-scale", "fedamp_jax/engine/server.py", "1.0 - sq_dists(models, inverse) / 2.0", "1.0 - sq_dists(models, inverse)",
             f"{ORACLES} heurfedamp"),
    # Attention.
    Mutation("softmax-over-all", "fedamp_jax/attention.py", "score = jnp.where(edges, score, -jnp.inf)",
             "score = jnp.where(edges | jnp.eye(len(edges), dtype=bool), score, -jnp.inf)", f"{ORACLES} heurfedamp"),
    Mutation("self-weight-forgotten", "fedamp_jax/attention.py", "with_self(share * (1.0 - own)[:, None], own)", "with_self(share, own)",
             f"{ORACLES} fedamp"),
    Mutation("eq5-factor", "fedamp_jax/attention.py", "off = jnp.where(edges, alpha * jnp.exp(score), 0.0)",
             "off = jnp.where(edges, 2 * alpha * jnp.exp(score), 0.0)", f"{ORACLES} fedamp"),
    Mutation("edges-turned", "fedamp_jax/attention.py", "receives[:, None] & sends[None]", "sends[:, None] & receives[None]",
             f"{ORACLES} fedamp"),
    Mutation("edges-own", "fedamp_jax/attention.py", " & ~jnp.eye(receives.shape[0], dtype=bool)", "", "tests/test_attention.py"),
    Mutation("slope-sigma", "fedamp_jax/attention.py", "return -t / sigma - jnp.log(sigma)", "return -t / sigma", f"{ORACLES} fedamp"),
    Mutation("scad-clip", "fedamp_jax/attention.py", "(a - t / sigma) / (a - 1.0), 0.0, 1.0", "(a - t / sigma) / a, 0.0, 1.0", "tests/test_attention.py"),
    # Methods.
    Mutation("fedamp-start", "fedamp_jax/algorithms/fedamp.py", 'Variables(cloud if start == "cloud" else mine.params, running)',
             "Variables(mine.params, running)", f"{ORACLES} fedamp"),
    Mutation("fedamp-prox-center", "fedamp_jax/algorithms/fedamp.py", "penalty(cloud_i, k, *numbers_i)", "penalty(begin_i.params, k, *numbers_i)",
             f"{ORACLES} fedamp"),
    Mutation("fedamp-stale-padding", "fedamp_jax/algorithms/fedamp.py", 'data.online if stale == "exclude" else data.size > 0',
             'data.online if stale == "exclude" else data.size >= 0', "tests/placement/test_mesh.py -k stale"),
    Mutation("fedamp-error-ignored", "fedamp_jax/algorithms/fedamp.py", "(~fine).astype(jnp.int32)", "(fine & False).astype(jnp.int32)",
             "tests/driver/test_rounds.py tests/test_attention.py tests/driver/test_loop.py"),
    Mutation("fedavg-from-start", "fedamp_jax/algorithms/fedavg.py", "weighted_mean(weights, sent.variables.params, state.params)",
             "weighted_mean(weights, received.variables.params, state.params)", f"{ORACLES} fedavg"),
    Mutation("fedprox-center", "fedamp_jax/algorithms/fedavg.py", "Prox(state.params, *mu_i)",
             "Prox(jax.tree.map(lambda a: 0 * a, state.params), *mu_i)", f"{ORACLES} fedprox"),
    Mutation("scaffold-share", "fedamp_jax/algorithms/scaffold.py", "jnp.sum(counts) / data.clients", "jnp.sum(counts) / jnp.sum(counts)",
             f"{ORACLES} scaffold"),
    Mutation("scaffold-steps", "fedamp_jax/algorithms/scaffold.py", "jnp.maximum(steps, 1).astype(jnp.float32)", "1.0", f"{ORACLES} scaffold"),
    Mutation("scaffold-weights", "fedamp_jax/algorithms/scaffold.py", "counts = (data.online & ~info.rejected).astype(jnp.float32)",
             "counts = jnp.where(data.online & ~info.rejected, data.size, 0).astype(jnp.float32)", f"{ORACLES} scaffold"),
    Mutation("scaffold-rejected", "fedamp_jax/algorithms/scaffold.py", "(data.online & ~info.rejected)", "(data.online)",
             f"{EXAM} diverge"),
    Mutation("apfl-chain-rule", "fedamp_jax/algorithms/apfl.py", "trees.expand_dims_like(alpha, a) * (a - b) + b",
             "trees.expand_dims_like(alpha, a) * (jax.lax.stop_gradient(a) - b) + b", f"{ORACLES} apfl"),
    Mutation("apfl-through-mixture", "fedamp_jax/algorithms/apfl.py", "_mix(alpha, v, jax.lax.stop_gradient(w))", "_mix(alpha, v, w)",
             f"{ORACLES} apfl"),
    Mutation("ditto-new-center", "fedamp_jax/algorithms/ditto.py", "Prox(shared.params, lam_i)",
             "Prox(jax.tree.map(lambda a: 0 * a, shared.params), lam_i)", f"{ORACLES} ditto"),
    Mutation("fedrep-order", "fedamp_jax/algorithms/shared_body.py", 'phases = [Phase("head", head_solver), Phase("body")]',
             'phases = [Phase("body"), Phase("head", head_solver)]', f"{ORACLES} fedrep"),
    Mutation("fedper-heads-averaged", "fedamp_jax/algorithms/shared_body.py", "heads if keep_heads else state.heads", "state.heads",
             f"{ORACLES} fedper"),
    Mutation("fedbabu-head-moves", "fedamp_jax/algorithms/shared_body.py", '[Phase("body")], stats=stats, edit=orthogonal_head',
             '[Phase("all")], stats=stats, edit=orthogonal_head', f"{ORACLES} fedbabu"),
    Mutation("fedrecon-heads-stored", "fedamp_jax/algorithms/fedrecon.py", "keep_heads=False", "keep_heads=True", f"{ORACLES} fedrecon"),
    Mutation("pflego-boost", "fedamp_jax/algorithms/pflego.py", "boost = data.clients / jnp.maximum(", "boost = 1.0 / jnp.maximum(",
             f"{ORACLES} pflego"),
    Mutation("pflego-rejected-online", "fedamp_jax/algorithms/pflego.py", "here = data.online & ~info.rejected", "here = data.online",
             f"{EXAM} diverge"),
    Mutation("pflego-alpha-online", "fedamp_jax/algorithms/pflego.py", "jnp.sum(data.size, dtype=jnp.float32)  # alpha_i",
             "jnp.sum(jnp.where(data.online, data.size, 0), dtype=jnp.float32)  # alpha_i", f"{ORACLES} pflego"),
    Mutation("numbers-of-the-first-client", "fedamp_jax/engine/hyperparameters.py", "return broadcast_to_clients(name, at_round(value, k), data)",
             "return broadcast_to_clients(name, jnp.ravel(at_round(value, k))[0], data)", "tests/algorithms/test_numbers_of_clients.py"),
    Mutation("epochs-of-the-first-client", "fedamp_jax/engine/clients.py", "jnp.asarray(own, jnp.int32)", "jnp.asarray(own, jnp.int32)[0]",
             "tests/algorithms/test_numbers_of_clients.py"),
    Mutation("pflego-steps", "fedamp_jax/algorithms/pflego.py", "epochs - 1, at_round(beta, k)", "epochs, at_round(beta, k)", f"{ORACLES} pflego"),
    Mutation("pfedme-server", "fedamp_jax/algorithms/pfedme.py", "a + step * (b - a), w, mean", "b, w, mean", f"{ORACLES} pfedme"),
    Mutation("pfedme-rate", "fedamp_jax/algorithms/pfedme.py", "a - rate * (a - b), w_i, theta.params", "a - at_round(eta, k) * (a - b), w_i, theta.params",
             f"{ORACLES} pfedme"),
    Mutation("pfedme-evaluates-local", "fedamp_jax/algorithms/pfedme.py", "return (theta, w_i), total", "return (Variables(w_i, theta.stats), w_i), total",
             f"{ORACLES} pfedme"),
    Mutation("pfedgraph-sign", "fedamp_jax/algorithms/pfedgraph.py", "cosine / (2.0 * at_round(lam, k))", "-cosine / (2.0 * at_round(lam, k))",
             f"{ORACLES} pfedgraph"),
    Mutation("pfedgraph-penalty-sign", "fedamp_jax/algorithms/pfedgraph.py", "-self.weight * (inverse * u - along * w)",
             "self.weight * (inverse * u - along * w)", f"{ORACLES} pfedgraph"),
    Mutation("pfedgraph-origin", "fedamp_jax/algorithms/pfedgraph.py", "lambda w, g: w - g[None], models.tree", "lambda w, g: w + 0 * g[None], models.tree",
             f"{ORACLES} pfedgraph"),
    Mutation("ifca-worst", "fedamp_jax/algorithms/ifca.py", "jnp.argmin(jnp.where(candidate, losses, jnp.inf))", "jnp.argmax(jnp.where(candidate, losses, -jnp.inf))",
             f"{ORACLES} ifca"),
    Mutation("ifca-takes-nan", "fedamp_jax/algorithms/ifca.py", " & ~jnp.isnan(losses)", "", "tests/algorithms/test_clustered.py"),
    Mutation("ifca-takes-any", "fedamp_jax/algorithms/ifca.py", "dtype=jnp.int32) < count)", "dtype=jnp.int32) < len(losses))", "tests/algorithms/test_clustered.py"),
    Mutation("ifca-uniform-mean", "fedamp_jax/algorithms/ifca.py", "jnp.where(members, weights[None], 0.0)", "jnp.where(members, jnp.sign(weights)[None], 0.0)",
             f"{ORACLES} ifca"),
    Mutation("ifca-one-start", "fedamp_jax/algorithms/ifca.py", "(jax.random.fold_in(key, j) for j in range(1, k))", "(key for j in range(1, k))",
             "tests/algorithms/test_clustered.py"),
    Mutation("ifca-membership", "fedamp_jax/algorithms/ifca.py", "jnp.where(counts, share, jnp.eye(", "jnp.where(counts, share, jnp.zeros_like(share) * jnp.eye(",
             f"{ORACLES} ifca"),
    Mutation("cfl-absent-stay", "fedamp_jax/algorithms/cfl.py", "jnp.where(state.cluster == divided, NOWHERE, state.cluster)", "state.cluster", f"{ORACLES} cfl"),
    Mutation("cfl-strongest-edge", "fedamp_jax/algorithms/cfl.py", "jnp.argmin(jnp.where(members & (place > 0), edge, jnp.inf))",
             "jnp.argmax(jnp.where(members & (place > 0), edge, -jnp.inf))", "tests/algorithms/test_clustered.py"),
    Mutation("cfl-chain", "fedamp_jax/algorithms/cfl.py", "jnp.maximum(nearest, near[i])", "near[i]", "tests/algorithms/test_clustered.py"),
    Mutation("cfl-uniform-mean", "fedamp_jax/algorithms/cfl.py", "share = jnp.where(members, weights[None], 0.0)", "share = jnp.where(members, 1.0, 0.0)", f"{ORACLES} cfl"),
    Mutation("cfl-unit-of-the-round", "fedamp_jax/algorithms/cfl.py", "largest if relative else 1.0", "jnp.max(most) if relative else 1.0", f"{ORACLES} cfl"),
    Mutation("cfl-absent-are-members", "fedamp_jax/algorithms/cfl.py", "[:, None]) & (weights > 0)[None]", "[:, None])", "tests/algorithms/test_clustered.py"),
    Mutation("cfl-one-too-many", "fedamp_jax/algorithms/cfl.py", "state.clusters < k_max", "state.clusters <= k_max", "tests/algorithms/test_clustered.py"),
    Mutation("cfl-parts-alike", "fedamp_jax/algorithms/cfl.py", "cluster_means(weights, end,", "cluster_means(weights, begin,", f"{ORACLES} cfl"),
    Mutation("cfl-largest-too-small", "fedamp_jax/algorithms/cfl.py", "(most > at_round(eps2, k)", "(most < at_round(eps2, k)", "tests/algorithms/test_clustered.py"),
    Mutation("cfl-unused-models", "fedamp_jax/algorithms/cfl.py", "waiting, state.models, state.clusters)", "waiting, state.models, k_max)", "tests/algorithms/test_clustered.py"),
    Mutation("fedfomo-trains-on-validation", "fedamp_jax/algorithms/fedfomo.py", "examples=lambda client: split(client)[0]",
             "examples=lambda client: client", f"{ORACLES} fedfomo"),
    Mutation("fedfomo-baseline", "fedamp_jax/algorithms/fedfomo.py", "where((info.epochs > 0) & ~info.rejected, begin, received)", "received", f"{ORACLES} fedfomo"),
    Mutation("fedfomo-distance", "fedamp_jax/algorithms/fedfomo.py", "jnp.sqrt(sum(jax.tree.leaves(squares)))",
             "sum(jax.tree.leaves(squares))", f"{ORACLES} fedfomo"),
    Mutation("tuned-online", "fedamp_jax/engine/clients.py", "data._replace(online=data.size > 0, placement=", "data._replace(placement=",
             "tests/algorithms/test_oracles.py tests/test_algorithms.py -k 'tuned'"),
    Mutation("tuned-freely", "fedamp_jax/algorithms/fine_tuned.py", "penalty(mine.variables.params, k) if penalty else None", "None",
             f"{ORACLES} tuned"),
    # Placements.
    Mutation("chunk-rows-unsorted", "fedamp_jax/placement/placement.py", "lambda a, r: a.at[write].set(r, mode=\"drop\")",
             "lambda a, r: jax.lax.dynamic_update_slice_in_dim(a, r, jnp.minimum(c * chunk, m - chunk), 0)",
             f"{EXAM} 'chunk and separate'"),
    Mutation("chunk-filler-written", "fedamp_jax/placement/placement.py", "jnp.full((fill,), m, order.dtype)",
             "jnp.zeros((fill,), order.dtype)", f"{EXAM} 'chunk and separate'"),
    Mutation("chunks-with-work", "fedamp_jax/placement/placement.py", "(jnp.sum(work > 0, dtype=jnp.int32) + chunk - 1) // chunk",
             "jnp.sum(work > 0, dtype=jnp.int32) // chunk", f"{EXAM} chunk"),
    Mutation("mesh-columns-of-padding", "fedamp_jax/placement/mesh.py", "flat[:, start : start + width].reshape(leaves[i].shape)",
             "flat[:, :width].reshape(leaves[i].shape)", "tests/placement/test_mesh.py"),
    Mutation("mesh-no-exchange", "fedamp_jax/placement/mesh.py", "return _constrain(placement, _constrain(placement, flat, AXIS), None, AXIS)",
             "return _constrain(placement, flat)", f"{EXAM} crosses"),
    Mutation("mesh-psum", "fedamp_jax/placement/mesh.py", "return lax.psum(own, AXIS)", "return own", "tests/placement/test_mesh.py"),
    Mutation("mesh-ring", "fedamp_jax/placement/mesh.py", "(first + t) % turns * own", "first * own", "tests/engine/test_clients.py tests/placement/test_mesh.py"),
    Mutation("mesh-settle", "fedamp_jax/placement/mesh.py", "return jax.tree.map(lambda a: lax.with_sharding_constraint(a, self._sharding(*spec(a))), state)",
             "return state", "tests/placement/test_mesh.py"),
    Mutation("host-rows-in-order", "fedamp_jax/placement/visits.py", "a[rows] = np.asarray(result)[: len(rows)]",
             "a[: len(rows)] = np.asarray(result)[: len(rows)]", f"{EXAM} hosts_memory"),
    Mutation("host-last-block-only", "fedamp_jax/placement/visits.py", "new[0] += np.asarray(result)", "new[0] = np.asarray(result)",
             "tests/placement/test_host_memory.py"),
    Mutation("memory-limit", "fedamp_jax/programs/memory.py", "needed.held + needed.working <= room:", "needed.working <= room:",
             "tests/programs/test_memory.py"),
    Mutation("memory-standing", "fedamp_jax/programs/memory.py", "int(0.8 * room) - standing)", "int(0.8 * room))",
             "--doctest-modules fedamp_jax/programs/memory.py"),
    Mutation("peak-release", "fedamp_jax/programs/jaxpr.py", "held += new - sum(", "held += new - 0 * sum(", "tests/programs/test_memory.py"),
    Mutation("peak-inside", "fedamp_jax/programs/jaxpr.py", "max(new, inner)", "new", "tests/programs/test_memory.py"),
    Mutation("platform-tpu", "fedamp_jax/platforms.py", "cpu=cpu, tpu=tpu,", "cpu=cpu, tpu=cpu,", "tests/kernels/test_distances.py"),
    Mutation("platform-convolution", "fedamp_jax/platforms.py", '"gpu": Choices("xla"', '"gpu": Choices("patches"', "tests/kernels/test_convolution.py"),
    Mutation("platform-convolves", "fedamp_jax/platforms.py", "and not convolves() else", "and convolves() else", "tests/programs/test_memory.py"),
    Mutation("flops-bound", "fedamp_jax/programs/jaxpr.py", "int(bound[1]) if bound else 1", "1", "tests/programs/test_cost.py"),
    Mutation("cycles-of-loops", "fedamp_jax/programs/cost.py", "total += _repetitions(line, computations[loop[1]]) *", "total +=",
             "tests/programs/test_cost.py"),
    Mutation("winograd-kernel", "fedamp_jax/kernels/winograd.py", "w[::-1, ::-1].transpose", "w.transpose", "tests/kernels/test_winograd.py"),
    Mutation("winograd-points", "fedamp_jax/kernels/winograd.py", "_POINTS[: TILE + r - 2]", "_POINTS[: TILE + 1]", "tests/kernels/test_winograd.py"),
    Mutation("winograd-taps", "fedamp_jax/kernels/winograd.py", "last = w.shape[0] - 1", "last = 2", "tests/kernels/test_winograd.py"),
    Mutation("winograd-saves", "fedamp_jax/kernels/winograd.py", "2 * tiles *", "tiles *", "--doctest-modules fedamp_jax/kernels/winograd.py"),
    Mutation("blocks-divide", "fedamp_jax/kernels/blocks.py", "batch // divisor if 2 * divisor >= size else -(-batch // size)", "-(-batch // size)",
             "tests/kernels/test_winograd.py"),
    Mutation("blocks-of-primes", "fedamp_jax/kernels/blocks.py", "batch // divisor if 2 * divisor >= size else -(-batch // size)", "batch // divisor",
             "tests/kernels/test_winograd.py"),
    Mutation("narrow-kernel-gradient", "fedamp_jax/kernels/convolution.py", "kernel=kernel, strides=strides, pads=pads, precision", "kernel=kernel, strides=(1, 1), pads=pads, precision",
             "tests/kernels/test_convolution.py"),
    Mutation("narrow-groups", "fedamp_jax/models/resnet.py", "min(math.gcd(32, channels), max(1, channels // 2))", "math.gcd(32, channels)", "tests/models/test_models.py"),
    Mutation("norm-mask", "fedamp_jax/models/normalization.py", "jnp.sum(v, (0, 1, 2), where=rows)", "jnp.sum(v, (0, 1, 2))", "tests/models/test_normalization.py"),
    Mutation("norm-select", "fedamp_jax/models/normalization.py", "jnp.sum(v, (0, 1, 2), where=rows)", "jnp.sum(v * rows.astype(v.dtype), (0, 1, 2))",
             "tests/models/test_normalization.py"),
    Mutation("norm-momentum", "fedamp_jax/models/normalization.py", "MOMENTUM = 0.9", "MOMENTUM = 0.99", "tests/models/test_normalization.py"),
    Mutation("norm-shift", "fedamp_jax/models/normalization.py", "(bias - mean * factor)", "(bias - mean)", "tests/models/test_normalization.py"),
    Mutation("norm-groups", "fedamp_jax/models/normalization.py", "jnp.repeat(of_group, channels // self.groups, 2)", "jnp.tile(of_group, channels // self.groups)",
             "tests/models/test_normalization.py"),
    Mutation("norm-variance", "fedamp_jax/models/normalization.py", "jnp.maximum(square - mean * mean, 0)", "square - mean * mean", "tests/models/test_normalization.py"),
    Mutation("winograd-chosen", "fedamp_jax/kernels/convolution.py", "r=kernel[0], pads", "r=3, pads", "tests/kernels/test_convolution.py"),
    Mutation("perplexity-base", "fedamp_jax/attention.py", "< jnp.log(k)", "< jnp.log2(k)", "tests/test_attention.py -k perplexity"),
    Mutation("perplexity-one-sigma", "fedamp_jax/attention.py", "jnp.where(flatter, middle, low)", "jnp.where(flatter.all(), middle, low)",
             "tests/test_attention.py -k perplexity"),
    Mutation("perplexity-nearest", "fedamp_jax/attention.py", "t = t - jnp.where(jnp.isfinite(nearest), nearest, 0.0)", "pass",
             "tests/test_attention.py -k perplexity"),
    Mutation("perplexity-of-identical", "fedamp_jax/attention.py", "jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)", "largest",
             "tests/test_attention.py -k perplexity"),
    Mutation("memory-not-checked", "fedamp_jax/data/checks.py", "if needed <= free:", "if needed:", "tests/data/test_select_and_stack.py -k does_not_fit"),
    Mutation("hold-out-overlaps", "fedamp_jax/data/select.py", "part(np.zeros_like(held), held)", "part(held, held)",
             "tests/data/test_select_and_stack.py"),
    Mutation("convolutions-with-less-effort", "fedamp_jax/programs/jitted.py", " and not _convolves(args)", "", "tests/programs/test_jitted.py"),
    Mutation("programs-of-a-module", "fedamp_jax/programs/kept.py", "for f in reversed(functions) if f.__closure__", "for f in functions", "tests/programs/test_kept.py"),
    Mutation("programs-kept-for-ever", "fedamp_jax/programs/kept.py", "results = others if owner is None else", "results = others if owner else", "tests/programs/test_kept.py"),
    Mutation("images-taken-for-kernels", "fedamp_jax/programs/jitted.py", 'if not hasattr(a, "placement")]', "]",
             "tests/programs/test_jitted.py"),
    # Driver.
    Mutation("evaluation-own-classes", "fedamp_jax/types.py", "found = jnp.where(own, logits, -jnp.inf)", "found = logits",
             "tests/driver/test_evaluation.py tests/driver/test_loop.py tests/driver/test_rounds.py"),
    Mutation("evaluation-padding", "fedamp_jax/driver/evaluation.py", "jnp.where(batch.mask[None], scores, 0.0)", "scores",
             "tests/driver/test_evaluation.py tests/models/test_tasks.py"),
    Mutation("loss-padding", "fedamp_jax/models/losses.py", "jnp.where(mask, outputs.astype(jnp.float32), zero)", "outputs", "tests/models/test_losses.py"),
    Mutation("class-weights", "fedamp_jax/models/losses.py", "log_p = log_p * jnp.asarray(weights, jnp.float32)[None]", "pass", "tests/models/test_losses.py"),
    Mutation("nnx-one-mode", "fedamp_jax/models/nnx.py", "_set_mode(made, train)\n", "_set_mode(made, True)\n", "tests/models/test_modes.py -k 'whatever_name and nnx'"),
    Mutation("nnx-one-noise", "fedamp_jax/models/nnx.py", "self.merge(self.training, variables, key)\n        # Stat", "self.merge(self.training, variables, jax.random.key(0))\n        # Stat",
             "tests/models/test_nnx.py"),
    # Models are told their mode, their mask and their classes.
    Mutation("mode-by-train-alone", "fedamp_jax/models/modes.py", "return train if name in TRAINING else", "return train if name == 'train' else",
             "tests/models/test_modes.py -k whatever_name"),
    Mutation("mode-in-fields", "fedamp_jax/models/task.py", "module.clone(**changed) if changed else module", "module",
             "tests/models/test_modes.py -k whatever_name"),
    Mutation("mode-of-shared-modules", "fedamp_jax/models/task.py", "new = [in_mode(a, train, made)", "new = [in_mode(a, train, {})",
             "tests/models/test_modes.py -k 'whatever_name and shared'"),
    Mutation("mode-in-a-sequence", "fedamp_jax/models/task.py", "if isinstance(module, nn.Sequential):", "if False:",
             "tests/models/test_modes.py -k sequence"),
    Mutation("mode-of-nnx-attributes", "fedamp_jax/models/nnx.py", "setattr(part, name, flag(name, train))", "pass",
             "tests/models/test_modes.py -k whatever_name"),
    Mutation("fixed-statistics-unseen", "fedamp_jax/models/modes.py", "    if same:\n", "    if False:\n", "tests/models/test_modes.py -k not_told"),
    Mutation("dropout-off-unseen", "fedamp_jax/models/task.py", "        if off:\n", "        if False:\n", "tests/models/test_modes.py -k not_told"),
    Mutation("dropout-off-unseen-nnx", "fedamp_jax/models/nnx.py", "        if off:\n", "        if False:\n", "tests/models/test_modes.py -k not_told"),
    Mutation("padding-in-statistics-unseen", "fedamp_jax/models/modes.py", "elif names and not dce_jaxpr(program, [True] * len(names))[1][before]:",
             "elif False:", "tests/models/test_modes.py -k with_padding"),
    Mutation("mask-of-vectors", "fedamp_jax/models/inputs.py", "return expand_dims_like(mask, x)", "return mask[:, None]",
             "tests/models/test_modes.py -k mask"),
    Mutation("mask-of-images-unseen", "fedamp_jax/models/modes.py", "_ROWS = 7919", "_ROWS = 4", "tests/models/test_modes.py -k another_axis"),
    Mutation("one-generator", "fedamp_jax/models/task.py", 'rngs = {"dropout": key, "params": jax.random.fold_in(key, 1)}', 'rngs = {"dropout": key}',
             "tests/models/test_modes.py -k generator"),
    Mutation("body-takes-all", "fedamp_jax/models/task.py", "return self.body(x, **taken)", "return self.body(x, train, mask)",
             "tests/models/test_modes.py -k body"),
    Mutation("fixed-statistics-by-hand", "fedamp_jax/engine/task_checks.py", "_warn_of_fixed_statistics(task, model, tree, kinds)\n\n", "\n\n",
             "tests/models/test_modes.py -k by_hand"),
    Mutation("predict-foreign-classes", "fedamp_jax/driver/evaluation.py", "made = own_logits(made, batch.classes)", "made = made",
             "tests/driver/test_evaluation.py -k does_not_have"),
    Mutation("predict-no-classes", "fedamp_jax/driver/evaluation.py", "(column < classes) | (jnp.asarray(classes) == 0)", "column < classes",
             "tests/test_saving.py -k predicts_with"),
    Mutation("saved-foreign-classes", "fedamp_jax/saving.py", "return outputs if self.classes is None else own_logits(outputs, int(self.classes[self._row(client)]))",
             "return outputs", "tests/test_saving.py -k predicts_with"),
    Mutation("saved-without-classes", "fedamp_jax/runner/train.py", "names=ids.tolist(), classes=classes,", "names=ids.tolist(),",
             "tests/runner/test_after_training.py -m 'slow or not slow' -k saved_models"),
    Mutation("predict-blocks", "fedamp_jax/driver/evaluation.py", "rows = b * block + jnp.arange(block, dtype=jnp.int32)",
             "rows = b * 0 + jnp.arange(block, dtype=jnp.int32)", "tests/models/test_tasks.py -k by_hand"),
    Mutation("metric-of-nobody", "fedamp_jax/driver/evaluation.py", "return jnp.where(client.size > 0, mean, jnp.nan)", "return mean",
             "tests/models/test_tasks.py -k without_test"),
    Mutation("metric-by-name", "fedamp_jax/driver/evaluation.py", "metrics=(by_name[name],)", "metrics=task.metrics[:1]", "tests/models/test_tasks.py -k by_hand"),
    Mutation("targets-cut", "fedamp_jax/data/stack.py", 'np.int32 if like.y.dtype.kind in "iu" else np.float32', "np.int32", "tests/models/test_tasks.py -k 'numpy or agree'"),
    Mutation("integers-lost", "fedamp_jax/data/checks.py", 'if keep_integers and x.dtype.kind in "iu":', "if False:", "tests/models/test_tasks.py -k integers"),
    Mutation("stats-unchecked", "fedamp_jax/engine/task_checks.py", "if old != new or jax.tree.structure(model.stats) != jax.tree.structure(stats):", "if False:",
             "tests/models/test_tasks.py -k contract"),
    Mutation("two-classes", "fedamp_jax/engine/task_checks.py", "if one_logit and classes > 2:", "if False:", "tests/models/test_tasks.py -k one_logit"),
    Mutation("state-from-zero", "fedamp_jax/driver/loop.py", "done = max(done, given)", "done = max(done, 0 * given)", "tests/driver/test_states.py -k goes_on"),
    Mutation("state-not-copied", "fedamp_jax/driver/states.py", "return jnp.copy(a) if sharding is None", "return a if sharding is None", "tests/driver/test_states.py -k goes_on"),
    Mutation("join-padding", "fedamp_jax/driver/states.py", "a[:m] if g else jnp.copy(a)", "a if g else jnp.copy(a)", "tests/driver/test_states.py -k placements"),
    Mutation("join-statistics", "fedamp_jax/engine/server.py", 'if stats == "local":\n        return fresh', "if True:\n        return fresh",
             "tests/driver/test_states.py -k 'batch_norm'"),
    Mutation("join-initial", "fedamp_jax/algorithms/fedamp.py", "Variables(mean.params, mean.stats", "Variables(start.params, mean.stats", "tests/driver/test_states.py -k every_method"),
    Mutation("join-heads", "fedamp_jax/algorithms/shared_body.py", "if never or not keep_heads:", "if True:", "tests/driver/test_states.py -k every_method"),
    Mutation("ids-anew", "fedamp_jax/data/select.py", "jnp.int32(ids.max() + 1)", "jnp.int32(0)", "tests/driver/test_states.py"),
    Mutation("saved-shapes", "fedamp_jax/saving.py", "        if a != b:", "        if False:", "tests/test_saving.py"),
    Mutation("saved-bits", "fedamp_jax/saving.py", "jnp.asarray(a.view(b.dtype))", "jnp.asarray(a)", "tests/test_saving.py -k bfloat16"),
    Mutation("schedule-first-steps", "fedamp_jax/engine/solver.py", "_AHEAD = (0, 1, 10, 1_000, 100_000)", "_AHEAD = (0, 1)", "tests/engine/test_solver.py -k schedule"),
    Mutation("models-of-another-key", "fedamp_jax/driver/loop.py", "partial(personal_models, algorithm, key_use,", "partial(personal_models, algorithm, key_round,", "tests/driver/test_observe.py -k models"),
    Mutation("models-with-padding", "fedamp_jax/driver/evaluation.py", "tiled=True))[:m]", "tiled=True))", "tests/driver/test_observe.py -k models"),
    Mutation("models-too-late", "fedamp_jax/driver/evaluation.py", "    check_not_donated(state)\n", "", "tests/driver/test_observe.py -k models"),
    Mutation("observers-turned", "fedamp_jax/driver/history.py", "for observe in observers:", "for observe in reversed(observers):", "tests/driver/test_observe.py -k several"),
    Mutation("mean-with-nan", "fedamp_jax/driver/patience.py", "mean_over_clients(scores)", "float(scores.mean())",
             "tests/driver/test_observe.py -k 'means or patience'"),
    Mutation("until-not-resumed", "fedamp_jax/driver/loop.py", "over = done >= rounds or patience.ended(until, result, done)", "over = done >= rounds", "tests/driver/test_observe.py -k ended"),
    Mutation("until-not-saved", "fedamp_jax/driver/loop.py", "% checkpoint.every == 0 or over)", "% checkpoint.every == 0 or k + 1 == rounds)", "tests/driver/test_observe.py -k ended"),
    Mutation("until-goes-on", "fedamp_jax/driver/loop.py", "            if over:\n                break\n", "", "tests/driver/test_observe.py -k 'progress or patience_ends'"),
    Mutation("until-between", "fedamp_jax/driver/patience.py", "result.rounds[-1:] == [done] and bool", "result.rounds and bool", "tests/driver/test_observe.py -k alone"),
    Mutation("until-unchecked", "fedamp_jax/driver/patience.py", "if isinstance(until, Patience) and until", "if False and until", "tests/driver/test_observe.py -k refused"),
    Mutation("observe-unchecked", "fedamp_jax/driver/history.py", "or not all(map(callable, found)):", "and False:", "tests/driver/test_observe.py -k refused"),
    Mutation("patience-upwards", "fedamp_jax/driver/patience.py", "means if self.metric.larger_is_better else -means", "means", "tests/driver/test_observe.py -k patience"),
    Mutation("patience-one-more", "fedamp_jax/driver/patience.py", "int(np.argmax(rising)) >= self.evaluations", "int(np.argmax(rising)) > self.evaluations", "tests/driver/test_observe.py -k patience_ends"),
    Mutation("patience-last", "fedamp_jax/driver/patience.py", "len(means) - 1 - int(np.argmax(rising))", "int((np.diff(rising) <= 0).sum())", "tests/driver/test_observe.py -k patience"),
    Mutation("csv-from-start", "fedamp_jax/writers.py", 'int(old["round"]) < row["round"]', "False", "tests/test_writers.py -k 'goes_on or experiment_writes'"),
    Mutation("csv-rounds-twice", "fedamp_jax/writers.py", 'int(old["round"]) < row["round"]', "True", "tests/test_writers.py -k 'goes_on or experiment_writes'"),
    Mutation("csv-half-a-line", "fedamp_jax/writers.py", '_cells(text[: text.rfind("\\n") + 1])', "_cells(text)", "tests/test_writers.py -k goes_on"),
    Mutation("csv-others-removed", "fedamp_jax/writers.py", "if self._other(old) or int", "if int", "tests/test_writers.py -k 'share or experiment_writes'"),
    Mutation("csv-of-others", "fedamp_jax/writers.py", '(rows := self._rows()) and not', '(rows := []) and not', "tests/test_writers.py -k other_files"),
    Mutation("csv-of-every-process", "fedamp_jax/writers.py", "        if jax.process_index() == 0:\n            self._write", "        if True:\n            self._write", "tests/test_writers.py -k one_of_several"),
    Mutation("csv-nan", "fedamp_jax/writers.py", "isinstance(value, float) and not math.isfinite(value)", "False", "tests/test_writers.py -k at_once"),
    Mutation("tensorboard-purge", "fedamp_jax/writers.py", '"purge_step": seen.round', '"purge_step": None', "tests/test_writers.py -k test_tensorboard"),
    Mutation("tensorboard-flush", "fedamp_jax/writers.py", ", flush_secs=1", "", "tests/test_writers.py -k test_tensorboard"),
    Mutation("wandb-step", "fedamp_jax/writers.py", "numbers(), step=seen.round", "numbers(), step=None", "tests/test_writers.py -k test_wandb"),
    Mutation("wandb-open", "fedamp_jax/writers.py", "opened.pop().finish()", "opened.pop()", "tests/test_writers.py -k test_wandb"),
    Mutation("extra-missing", "fedamp_jax/runner/options.py", "        writers.package(extra)", "        pass", "tests/test_writers.py -k missing"),
    Mutation("wandb-id", "fedamp_jax/runner/live.py", "if not path.exists():", "if True:", "tests/test_writers.py -k wandb_run"),
    Mutation("live-percent", "fedamp_jax/runner/live.py", '100.0 * known.pop("accuracy")', 'known.pop("accuracy")', "tests/test_writers.py -k experiment_writes"),
    Mutation("live-observed", 'fedamp_jax/runner/train.py', '[observer(groups), *watching]', '[*watching, observer(groups)]', 'tests/test_writers.py -k experiment_writes'),
    Mutation("pflego-paper-heads", "fedamp_jax/experiments/pflego_paper.py", 'initial_heads == "common"', 'initial_heads == "own"',
             "tests/experiments/test_pflego.py -k initial"),
    Mutation("pflego-paper-fedper-heads", 'fedamp_jax/experiments/pflego_paper.py', '"FedPer": (whole, common)', '"FedPer": (whole, {})', 'tests/experiments/test_pflego.py -k initial'),
    Mutation("help-hidden", 'fedamp_jax/runner/help_text.py', 'if not one.metadata.get("hidden")', 'if True', 'tests/runner/test_command.py -k help_is'),
    Mutation("help-without-a-group", 'fedamp_jax/runner/help_text.py', 'if dataclasses.is_dataclass(field.default):', 'if dataclasses.is_dataclass(field.default) and field.name != "attention":', 'tests/runner/test_command.py -k help_is'),
    Mutation("help-of-inherited", 'fedamp_jax/runner/command_line.py', 'values |= {option: panel.values or (values[option],)', 'values |= {option: panel.values or ()', 'tests/runner/test_command_line.py -k several_parts'),
    Mutation("help-wide", 'fedamp_jax/runner/help_text.py', 'line.replace(f"python {script}", program)', 'line', 'tests/runner/test_command.py -k help_is'),
    Mutation('set-unused', 'fedamp_jax/algorithms/registry.py', '**(changes or {}).get(name, {})}', '}', 'tests/runner/test_command_line.py -k hyperparameters'),
    Mutation('set-of-others', 'fedamp_jax/algorithms/registry.py', 'if key not in hyperparameters(name):', 'if False:', 'tests/runner/test_command_line.py -k hyperparameters'),
    Mutation('all-methods-made', 'fedamp_jax/algorithms/registry.py', 'return {name: one(name) for name in names}', 'return {name: one(name) for name in METHODS}', 'tests/runner/test_command_line.py -k chosen'),
    Mutation('methods-checked-late', 'fedamp_jax/runner/experiment.py', '        chosen(options.schedule.methods, self.names, registry.PAPER_METHODS)\n        registry.parse(', '        registry.parse(', 'tests/runner/test_command_line.py -k unknown_methods'),
    Mutation('quick-methods', 'fedamp_jax/runner/experiment.py', 'options = options.replace(methods=self.quick_names)', 'pass', 'tests/runner/test_command.py -k quick'),
    Mutation('folder-name-long', 'fedamp_jax/runner/provenance.py', 'if len(name.encode()) > _LONGEST:', 'if False:', 'tests/runner/test_command_line.py -k many_seeds'),
    Mutation("validation-unused", 'fedamp_jax/runner/experiment.py', 'federation._replace(train=train, test=validation)', 'federation._replace(train=train)', 'tests/runner/test_command_line.py -k validation'),
    Mutation("validation-trained-on", 'fedamp_jax/runner/experiment.py', 'federation._replace(train=train, test=validation)', 'federation._replace(test=validation)', 'tests/runner/test_command_line.py -k validation'),
    Mutation("validation-unsaid", "fedamp_jax/report/schema.py", 'if settings.get("validation_fraction") else', 'if settings.get("validation") else', "tests/runner/test_command_line.py -k validation"),
    Mutation("validation-axis", "fedamp_jax/report/figures.py", """f"mean {judged_by(results.get('settings', {}))} accuracy (%)\"""", '"mean test accuracy (%)"', "tests/runner/test_command_line.py -k validation"),
    Mutation("validation-page", "fedamp_jax/report/run_page.py", 'judged_by(results["settings"])', '"test"', "tests/runner/test_command_line.py -k validation"),
    Mutation("validation-compare", "fedamp_jax/report/compare_page.py", 'kinds.pop()', '"test"', "tests/runner/test_command_line.py -k validation"),
    Mutation("validation-as-paper", "fedamp_jax/experiments/paper_values.py", 'own.get("validation_fraction") or ', "", "tests/runner/test_command_line.py -k validation"),
    Mutation("quick-as-paper", "fedamp_jax/experiments/paper_values.py", ' or own.get("quick")', "", "tests/studies/test_tables.py -k left_out"),
    Mutation("empty-tables", "experiments/studies/paper_tables.py", "    if not kept:\n        return []\n    columns:", "    columns:", "tests/studies/test_tables.py -k left_out"),
    Mutation("validation-unchecked", 'fedamp_jax/runner/options.py', 'if not 0 <= data.validation_fraction < 1:', 'if False:', 'tests/runner/test_command_line.py -k validation'),
    Mutation("validation-p-value", "fedamp_jax/report/files.py", '"lead", "validation_fraction", "holdout_clients"', '"lead", "holdout_clients"', "tests/runner/test_command_line.py -k validation"),
    Mutation("schedule-injected", "fedamp_jax/engine/solver.py", "lambda count: count + steps, state", "lambda count: count, state", "tests/engine/test_solver.py -k schedule"),
    Mutation("participation-by-position", "fedamp_jax/driver/participation.py", "drawn = drawn[jnp.argsort(jnp.argsort(data.id[:clients]))]",
             "drawn = drawn[:clients]", "tests/driver/test_loop.py tests/driver/test_rounds.py tests/test_algorithms.py -k 'particip or share or order or permut'"),
    Mutation("run-restores-nothing", "fedamp_jax/driver/loop.py", "done = saved.restore(result) if saved else 0", "done = 0", "tests/driver/test_checkpoint.py tests/driver/test_loop.py"),
    Mutation("checkpoint-round-lost", "fedamp_jax/driver/checkpoint.py", "self._manager.save(done, args", "self._manager.save(done + 1, args", "tests/driver/test_checkpoint.py"),
    Mutation("checkpoint-any-settings", "fedamp_jax/driver/checkpoint.py", "        if differing:", "        if False:", "tests/driver/test_checkpoint.py"),
    Mutation("scan-keys", "fedamp_jax/driver/rounds.py", "algorithm.round(key_round, state, _with_examples(present))", "algorithm.round(key_use, state, _with_examples(present))", "tests/driver/test_rounds.py"),
    # Data.
    Mutation("balanced-nothing", "fedamp_jax/data/federations.py", "order = np.argsort(rank * (np.sqrt(5) - 1) / 2 % 1)", "order = np.argsort(rank)", "tests/data/test_select_and_stack.py"),
    Mutation("labels-unchecked", "fedamp_jax/data/stack.py", "for i in np.flatnonzero(highest >= classes.astype(np.uint64)).tolist():", "for i in ():", "tests/data/test_select_and_stack.py"),
    Mutation("mask-dropped", "fedamp_jax/data/tables.py", "    _check_mask(value, what)\n", "", "tests/data/test_tables.py"),
    Mutation("columns-as-objects", "fedamp_jax/data/tables.py", "return np.stack(arrays, axis=1)", "return np.asarray([list(row) for row in zip(*columns)], object)", "tests/data/test_tables.py"),
    Mutation("names-by-tolist", "fedamp_jax/data/tables.py", 'for name in ("tolist", "to_list", "to_pylist"):', 'for name in ("tolist",):', "tests/data/test_tables.py"),
    Mutation("sparse-as-object", "fedamp_jax/data/tables.py", 'and hasattr(value, "nnz"):', "and False:", "tests/data/test_tables.py -k sparse"),
    Mutation("clients-by-name", "fedamp_jax/data/tables.py", 'if isinstance(values, Mapping):', "if False:", "tests/data/test_tables.py"),
    Mutation("text-of-objects", "fedamp_jax/data/tables.py", 'if array.dtype == object else None', "if False else None", "tests/data/test_tables.py"),
    Mutation("absent-clients-counted", "fedamp_jax/analysis/accuracy.py", "np.maximum(number, 1), np.nan)", "array.shape[-1], np.nan)", "tests/analysis/test_analysis.py -k left_out"),
    Mutation("absent-clients-tested", "fedamp_jax/analysis/significance.py", "if judged.any():", "if False:", "tests/analysis/test_analysis.py -k left_out"),
    Mutation("absent-clients-in-tables", "fedamp_jax/runner/train.py", "tail = tail[:, ~np.isnan(tail).all(axis=0)]", "tail = tail[:]", "tests/report/test_report.py -k without_test_data"),
    # Partitions, the command line and what it says.
    Mutation("first-draw-taken", "fedamp_jax/data/partition/skew.py", "if min_size == 1 or sizes.min() >= min_size:", "if True:", "tests/data/test_partition.py -k large_enough"),
    Mutation("foreign-classes-tested", "fedamp_jax/data/partition/skew.py", "fill_empty(_to_holders(test, held, y_test, balanced), held", "fill_empty(test, held", "tests/data/test_partition.py -k train_on"),
    Mutation("balanced-priors", "fedamp_jax/data/partition/skew.py", "np.maximum(alpha * frequency, 1e-12)", "np.full(len(frequency), alpha)", "tests/data/test_partition.py"),
    Mutation("shards-unsorted", "fedamp_jax/data/partition/skew.py", 'mixed[np.argsort(y[mixed], kind="stable")]', "mixed", "tests/data/test_partition.py"),
    Mutation("quantity-by-class", "fedamp_jax/data/partition/skew.py", "rows = np.split(rng.permutation(len(y)), np", "rows = np.split(np.argsort(y, kind='stable'), np", "tests/data/test_partition.py"),
    Mutation("small-first", "fedamp_jax/data/federations.py", "np.concatenate([members[:each] for members in first.values()])", "np.arange(len(groups))", "tests/data/test_select_and_stack.py"),
    Mutation("small-sizes", "fedamp_jax/data/federations.py", "size = np.minimum(data.size, examples)", "size = np.asarray(data.size)", "tests/data/test_select_and_stack.py"),
    Mutation("starts", "fedamp_jax/driver/loop.py", "if k == done:", "if k == 0:", "tests/driver/test_loop.py"),
    Mutation("lines", "fedamp_jax/driver/progress.py", "if not self._lines or note is None:", "if not self._lines:", "tests/driver/test_loop.py -k lines"),
    Mutation("lines-of-every-round", "fedamp_jax/driver/progress.py", "if now - self._printed >= SECONDS:", "if True:", "tests/driver/test_loop.py -k lines"),
    Mutation("last-line", "fedamp_jax/driver/progress.py", "if self._unprinted:", "if False:", "tests/driver/test_loop.py -k lines"),
    Mutation("flops-of-the-general", "fedamp_jax/programs/jaxpr.py", "platform in of)", "False)", "tests/programs/test_cost.py"),
    Mutation("forecast-dropped", 'fedamp_jax/runner/cost.py', '* (1 - options.schedule.drop_rate)', '', 'tests/runner/test_forecast.py'),
    Mutation("forecast-batch", "fedamp_jax/runner/cost.py", "size = min(batch_size, train.longest)", "size = train.longest", "tests/runner/test_forecast.py"),
    Mutation("unlocked", "fedamp_jax/runner/run_folder.py", "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass", "tests/runner/test_command.py"),
    Mutation("permission", "fedamp_jax/runner/run_folder.py", "if not os.access(there, os.W_OK):", "if False:", "tests/runner/test_command.py"),
    Mutation("case-of-folders", "fedamp_jax/runner/command_line.py", "written.append(known.get(plain(word), word))", "written.append(known.get(plain(word), word.lower()))", "tests/runner/test_command.py"),
    Mutation("toml-dashes", "fedamp_jax/runner/command_line.py", 'name.replace("-", "_"): value', "name: value", "tests/runner/test_command.py"),
    Mutation("auto-self-weight", "fedamp_jax/algorithms/registry.py", "1 / (sigma.k + 1) if isinstance(sigma, Perplexity) else setup.self_weight", "setup.self_weight", "tests/runner/test_command_line.py -k auto"),
    Mutation("dtype-unused", 'fedamp_jax/experiments/fedamp_paper.py', '"compute_dtype": jnp.dtype(training.dtype)', '"compute_dtype": jnp.float32', 'tests/runner/test_command_line.py -k auto'),
    Mutation("alpha-unused", 'fedamp_jax/experiments/dirichlet.py', '{"alpha": self.alpha, "clients": self.clients}', '{"clients": self.clients}', 'tests/runner/test_command_line.py -k dirichlet'),
    Mutation("bfloat16-told", "fedamp_jax/runner/machine.py", "and not bfloat16_instructions()", "", "tests/runner/test_command_line.py -k bfloat16"),
    # After training.
    Mutation("extended-fingerprint", "fedamp_jax/runner/train.py", 'if key != "rounds"}', "}", "tests/runner/test_after_training.py -k go_on"),
    Mutation("extended-overwrites", "fedamp_jax/runner/run_folder.py", '(folder / "results.json").replace(folder / f"results-{rounds}-rounds.json")', "pass", "tests/runner/test_after_training.py -k go_on"),
    Mutation("checkpoints-not-thinned", "fedamp_jax/runner/run_folder.py", "path.name != newest", "False", "tests/runner/test_after_training.py -k go_on"),
    Mutation("more-rounds-accepted", 'fedamp_jax/runner/train.py', ') > rounds_in_all:', ') > 10**9:', 'tests/runner/test_after_training.py -k refused'),
    Mutation("finished-lost", "fedamp_jax/runner/train.py", "for name in kept if name in entries}", "for name in kept if name in entries and name in wanted}", "tests/runner/test_after_training.py -k lost"),
    Mutation("models-by-row", "fedamp_jax/runner/train.py", "names=ids.tolist()", "names=sorted(ids.tolist())", "tests/runner/test_after_training.py -k judged"),
    Mutation("models-other-key", "fedamp_jax/runner/newcomers.py", "result.rounds[-1] - 1)[2]", "result.rounds[-1] - 1)[1]", "tests/runner/test_after_training.py -k judged"),
    Mutation("newcomers-in-front", "fedamp_jax/runner/newcomers.py", "[m:][: len(ids), 0]", "[:m][: len(ids), 0]", "tests/runner/test_after_training.py -k held_out"),
    Mutation("width-unused", 'fedamp_jax/experiments/fedamp_paper.py', 'training.width << stage', '64 << stage', 'tests/runner/test_experiment.py -k width'),
    Mutation("width-in-tables", "fedamp_jax/experiments/paper_values.py", ' and own.get("width", WIDTH) == WIDTH', "", "tests/runner/test_experiment.py -k width"),
    Mutation("distances-of-one-scale", 'fedamp_jax/runner/train.py', 'by_distance = name in run.experiment.scales(run.options)', 'by_distance = run.experiment.scales(run.options).get(name) is not None', 'tests/runner/test_command_line.py -k auto'),
    Mutation("closed-loops", "fedamp_jax/runner/command_line.py", 'if not (what.exc_type is RuntimeError and str(what.exc_value) == "Event loop is closed"):', "if what.exc_type is not RuntimeError:", "tests/runner/test_command_line.py -k closed_loops"),
    Mutation("newcomers-without-data", "fedamp_jax/report/method_table.py", "found = analysis.mean_over_clients(np.asarray(values, np.float64))", "found = float(np.mean(np.asarray(values, np.float64)))", "tests/report/test_report.py -k newcomers"),
    Mutation("full-disk", "fedamp_jax/runner/command_line.py", "error.errno == errno.ENOSPC", "False", "tests/runner/test_command_line.py -k full_disk"),
    Mutation("only-example-held-out", "fedamp_jax/data/select.py", "np.maximum(sizes - 1, 0))", "sizes)", "tests/data/test_select_and_stack.py -k hold_out"),
    Mutation("memory-not-said", 'fedamp_jax/runner/train.py', 'if asked or is_long:', 'if asked:', 'tests/runner/test_forecast.py -k memory'),
    Mutation("everybody-trains", "fedamp_jax/runner/newcomers.py", "return part(clients, ~out), part(clients, out)", "return clients, part(clients, out)", "tests/runner/test_after_training.py -k held_out"),
    Mutation("leads-tenth", "experiments/studies/leads.py", 'hold_out(clients.train, 0.9, seed=0)[0]', 'hold_out(clients.train, 0.9, seed=0)[1]', "tests/studies/test_leads.py -k tenth"),
    Mutation("leads-images-unsorted", "experiments/studies/leads.py", 'x=jnp.asarray(x[order])', 'x=jnp.asarray(x)', "tests/studies/test_leads.py -k sorted_by_class"),
    Mutation("leads-sorted-across-clients", "experiments/studies/leads.py", 'np.lexsort((y, np.repeat(np.arange(train.clients), train.size)))', 'np.argsort(y, kind="stable")', "tests/studies/test_leads.py -k sorted_by_class"),
    Mutation("leads-shuffled", "experiments/studies/leads.py", 'shuffle=False', 'shuffle=True', "tests/studies/test_leads.py -k not_shuffled"),
    Mutation("leads-even-test", "experiments/studies/leads.py", 'for split in ("train", "test"):', 'for split in ("train",):', "tests/studies/test_leads.py -k frequent"),
    Mutation("leads-even-labels", "experiments/studies/leads.py", '"x_{split}": x[rows]', '"x_{split}": x[: len(rows)]', "tests/studies/test_leads.py -k frequent"),
    Mutation("leads-pixels-of-evaluation", "experiments/studies/leads.py", 'task.predict(variables, raw(x))', 'task.predict(variables, x)', "tests/studies/test_leads.py -k pixels"),
    Mutation("leads-pixels-of-training", "experiments/studies/leads.py", 'batch._replace(x=raw(batch.x))', 'batch', "tests/studies/test_leads.py -k pixels"),
    Mutation("leads-decoupled-decay", "experiments/studies/leads.py", 'optax.chain(decay, solver.at_round(k, client))', 'optax.chain(solver.at_round(k), decay)', "tests/studies/test_leads.py -k l2"),
    Mutation("leads-tuned-freely", "experiments/studies/leads.py", ', penalty=term)', ')', "tests/studies/test_leads.py -k proximal"),
    Mutation("leads-fedamp-own-models", "experiments/studies/leads.py", 'still.personalize(key, still.round(key, state, data)[0], data)', 'still.personalize(key, state, data)', "tests/studies/test_leads.py -k other_models"),
    Mutation("leads-fedavg-average", "experiments/studies/leads.py", '"FedAvg": methods["FedAvg-FT"]', '"FedAvg": methods["FedAvg"]', "tests/studies/test_leads.py -k other_models"),
    Mutation("leads-order-of-rows", "experiments/studies/leads.py", 'order = jnp.argsort(data.id)', 'order = jnp.arange(len(data.id))', "tests/studies/test_leads.py -k one_optimizer"),
    Mutation("leads-rows-not-put-back", "experiments/studies/leads.py", 'a[jnp.argsort(order)]', 'a', "tests/studies/test_leads.py -k one_optimizer"),
    Mutation("leads-own-optimizers", "experiments/studies/leads.py", '(keep._replace(optimizer=optimizer), *rest)', '(keep, *rest)', "tests/studies/test_leads.py -k one_optimizer"),
    Mutation("leads-optimizer-of-rounds", "experiments/studies/leads.py", 'jnp.broadcast_to(a, b.shape), after, before)', 'b, after, before)', "tests/studies/test_leads.py -k one_optimizer"),
    Mutation("leads-base-changed", 'experiments/studies/leads.py', '"base": Lead("as in `practical.py`")', '"base": Lead("as in `practical.py`", clients=tenth)', 'tests/studies/test_leads.py -k base'),
    Mutation("leads-first-text", "experiments/studies/tables.py", 'str(part["settings"]["lead"]), part["methods"]', 'str(parts[0]["settings"]["lead"]), part["methods"]', "tests/studies/test_tables.py -k leads"),
    Mutation("leads-twice", "experiments/studies/tables.py", 'own = ("ablation", "leads")', 'own = ("ablation",)', "tests/studies/test_tables.py -k leads"),
    Mutation("leads-first-only", 'experiments/studies/leads.py', 'for name in self.lead.split("+")]', 'for name in self.lead.split("+")[:1]]', 'tests/studies/test_leads.py -k together'),
    Mutation("checkpoint-without-room", "fedamp_jax/driver/checkpoint.py", "disk.free < needed", "disk.free < 0", "tests/driver/test_checkpoint.py -k full_disk"),
    Mutation("checkpoint-removes-once", "fedamp_jax/driver/checkpoint.py", "in (0.0, 0.1, 1.0)", "in (0.0,)", "tests/driver/test_checkpoint.py -k still_written"),
    Mutation("tracebacks", "fedamp_jax/driver/checkpoint.py", 'return not (record.exc_info and "orbax" in Path(record.pathname).parts)', "return True", "tests/driver/test_checkpoint.py -k full_disk"),
    Mutation("coordinator-leaves-first", "fedamp_jax/launch.py", "leave.join(FAREWELL)", "", "tests/placement/test_processes.py -m slow -k moment_apart"),
    # Experiments that lose results, or compare what differs.
    Mutation("attention-dry-run-trains", 'fedamp_jax/runner/entry.py', 'if first.machine.dry_run is not None:', 'if False:', "tests/runner/test_dry_run.py -k 'every_experiment and attention'"),
    Mutation("dirichlet-alone", "fedamp_jax/experiments/paper_values.py", 'elif setting == "pathological":', "elif True:", "tests/runner/test_experiment.py -k self_weights"),
    Mutation("faulty-loses-methods", "experiments/studies/faulty.py", "{n: done[n] for n in order if n in done}", "{n: done[n] for n in order[: order.index(name) + 1]}", "tests/studies/test_faulty.py -k resuming"),
    Mutation("faulty-new-origin", "experiments/studies/faulty.py", "if all(n in done for n in order) else", "if False else", "tests/studies/test_faulty.py -k resuming"),
    Mutation("single-examples-validated", 'fedamp_jax/runner/experiment.py', '(single := size < 2)', '(single := size < 0)', 'tests/runner/test_experiment.py -k one_example'),
    Mutation("origin-lost", 'fedamp_jax/runner/train.py', '_without_methods(run) if wanted else', '_without_methods(run) if True else', 'tests/runner/test_experiment.py -k origin'),
    Mutation("panels-origin-lost", "fedamp_jax/runner/grid.py", "if found and json", "if False and json", "tests/runner/test_experiment.py -k origin"),
    Mutation("p-of-other-clients", "fedamp_jax/report/files.py", "for key in _OF_CLIENTS)", 'for key in ("seed", "seeds"))', "tests/runner/test_compare.py -k same_clients"),
    Mutation("paper-beside-other-labels", "fedamp_jax/experiments/paper_values.py", ' and own.get("labels", "own") == "own"', "", "tests/runner/test_experiment.py -k papers_values_are"),
    Mutation("dirichlet-in-no-table", "experiments/studies/rows.py", 'row.head["experiment"] in paper_values.PAPER_SIGMA and ', "", "tests/studies/test_tables.py -k other_settings"),
    Mutation("width-unnamed", "experiments/studies/tables.py", "width != paper_values.WIDTH and", "False and", "tests/studies/test_tables.py -k other_settings"),
    Mutation("validation-unnamed", "experiments/studies/tables.py", 'own.get("validation_fraction") and "validation data",', '', "tests/studies/test_tables.py -k other_settings"),
    Mutation("seeds-unchecked", "fedamp_jax/runner/grid.py", 'check_integer("--seeds", seed, low=0)', "pass", "tests/runner/test_experiment.py -k negative"),
    Mutation("omniglot-side-by-side", 'fedamp_jax/experiments/omniglot.py', 'machine = dataclasses.replace(machine, chunk=1)', 'pass', 'tests/runner/test_dry_run.py -k omniglot_without'),
    # Clients without examples, losses that are no numbers, what stays at home.
    Mutation("empty-client-online", "fedamp_jax/driver/rounds.py", "data.online & (data.size > 0)", "data.online", "tests/algorithms/test_corrupted.py -k without_examples"),
    Mutation("nan-gain", "fedamp_jax/algorithms/fedfomo.py", "jnp.where(after < before[:, None], before[:, None] - after, 0.0)", "jnp.maximum(before[:, None] - after, 0.0)", "tests/algorithms/test_corrupted.py -k without_a_loss"),
    Mutation("tuning-transmitted", "fedamp_jax/engine/clients.py", "dataclasses.replace(data.placement, transmit=None)", "data.placement", "tests/algorithms/test_corrupted.py -k stays_at_home"),
    Mutation("no-edge-counts-as-one", "fedamp_jax/attention.py", "jnp.where(jnp.any(some, axis=1, keepdims=True), found, -jnp.inf)", "found", "tests/test_attention.py -k few_or_equal"),
    Mutation("perplexity-from-below", "fedamp_jax/attention.py", "_, high = lax", "high, _ = lax", "tests/test_attention.py -k few_or_equal"),
    Mutation("nan-is-right", "fedamp_jax/types.py", " & ~jnp.isnan(jnp.max(found, axis=-1))", "", "tests/driver/test_evaluation.py -k diverged"),
    Mutation("nan-is-negative", "fedamp_jax/models/metrics.py", " & ~jnp.isnan(a)", "", "tests/driver/test_evaluation.py -k diverged"),
    Mutation("host-data-stay", "fedamp_jax/placement/placement.py", "if moves and a.committed else a", "if False else a", "tests/driver/test_loop.py -k leave_the_host"),
    # Paths, labels and names that are not what they seem; clients that are dropped.
    Mutation("address-is-a-folder", "fedamp_jax/files.py", "if _URL.match(text):", "if False:", "tests/test_files.py -k addresses"),
    Mutation("home-is-a-folder", "fedamp_jax/files.py", "Path(os.path.expanduser(text))", "Path(text)", "tests/test_files.py -k home"),
    Mutation("longest-name", "fedamp_jax/files.py", "path.name if len(encoded) <= _LONGEST else", "path.name if True else", "tests/test_files.py -k nnn"),
    Mutation("brackets-are-a-pattern", "fedamp_jax/driver/checkpoint.py", "    if _is_plain(directory):", "    if True:", "tests/test_files.py -k 'layers and allows'"),
    Mutation("links-of-several-processes", "fedamp_jax/driver/checkpoint.py", " or jax.process_count() > 1:", ":", "tests/driver/test_checkpoint.py -k odd"),
    Mutation("always-make-room", "fedamp_jax/driver/checkpoint.py", "if any(os.strerror(n) in said for n in numbers)", "", "tests/driver/test_checkpoint.py -k what_to_do"),
    Mutation("written-too-late", "fedamp_jax/driver/loop.py", "            saved.check_writable()", "            pass", "tests/driver/test_checkpoint.py -k what_to_do"),
    Mutation("paths-are-markup", "fedamp_jax/runner/messages.py", "markup=False, emoji=False", "emoji=False", "tests/test_files.py -k printed"),
    Mutation("paths-are-emoji", "fedamp_jax/runner/messages.py", ", emoji=False", "", "tests/test_files.py -k printed"),
    Mutation("paths-end-the-process", "fedamp_jax/runner/messages.py", '    text = text.encode(where.encoding, "backslashreplace").decode(where.encoding)\n', "", "tests/test_files.py -k printed"),
    Mutation("rejected-in-silence", "fedamp_jax/driver/loop.py", "history.warn_rejected(result.rejected - before, k + 1 - trained_before, train.id)", "pass", "tests/driver/test_loop.py -k named_once"),
    Mutation("rejected-before", "fedamp_jax/driver/loop.py", "result.rejected - before", "result.rejected", "tests/driver/test_loop.py -k named_once"),
    Mutation("rejected-by-row", "fedamp_jax/driver/history.py", "client {ids[i]} in", "client {i} in", "tests/driver/test_loop.py -k named_once"),
    Mutation("rejected-not-in-table", "fedamp_jax/report/method_table.py", "caption=Text(lost) if lost else None", "caption=None", "tests/report/test_report.py -k terminal"),
    Mutation("label-as-given", "fedamp_jax/writers.py", "_cells(_line([_cell(value)]))[0][0]", "value", "tests/test_writers.py -k what_is_read"),
    Mutation("label-is-a-number", "fedamp_jax/writers.py", "[name for name in labels if name in numbers]", "[]", "tests/test_writers.py -k no_number"),
    Mutation("cell-unfinished", "fedamp_jax/writers.py", "if len(row) == len(rows[0])", "", "tests/test_writers.py -k not_finished"),
    Mutation("names-are-tuples", "fedamp_jax/saving.py", "if not isinstance(name, (str, int, float)) or", "if", "tests/test_saving.py -k would_not"),
    Mutation("names-of-numpy", "fedamp_jax/saving.py", "name.item() if isinstance(name, np.generic) else name", "name", "tests/test_saving.py -k of_numpy"),
    Mutation("set-blocking", "fedamp_jax/driver/signals.py", 'if hasattr(os, "set_blocking"):', "if True:", "tests/driver/test_loop.py -k windows"),
    Mutation("private-models", "fedamp_jax/files.py", "os.replace(unfinished, path)", "unfinished.chmod(0o600)\n        os.replace(unfinished, path)", "tests/test_saving.py -k may_read"),
]  # fmt: skip


def run_tests(tests: str, file: str | None = None, text: str = "") -> tuple[int, str]:
    """Runs tests in a copy of the checkout where `text` has replaced a file of the package.

    Returns: pytest's exit code, and the last lines that it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in subprocess.check_output(FILES, cwd=ROOT, text=True).splitlines():
            there = Path(folder) / name
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, there, follow_symlinks=False)
        if file is not None:
            (Path(folder) / file).write_text(text)
        command = f"{sys.executable} -m pytest -x -q -n 0 -p no:cacheprovider --no-header {tests}"
        done = subprocess.run(
            command, shell=True, cwd=folder, env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True
        )
    return done.returncode, "\n".join(done.stdout.splitlines()[-3:])


def survives(mutation: Mutation) -> tuple[bool, str]:
    """Whether all tests pass although the package is wrong; and the last lines that pytest printed."""
    source = (ROOT / mutation.file).read_text()
    if source.count(mutation.old) != 1:
        return True, f"the text occurs {source.count(mutation.old)} times in {mutation.file}: update the mutation"
    wrong = source.replace(mutation.old, mutation.new)
    code, text = run_tests(mutation.tests, mutation.file, wrong)
    if code != 1:  # the test that notices it may be one of those that CI runs
        code, text = run_tests(f"{mutation.tests} -m slow", mutation.file, wrong)
    # 1: a test failed. Anything else (no test selected, an error in pytest itself) has examined nothing.
    return code != 1, text


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutations whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--jobs", type=int, default=2, help="mutations that are tried at the same time")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if not options.words or any(word in m.name for word in options.words)]
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)
    if options.list:
        print("\n".join(m.name for m in chosen))
        return 0
    survivors, began = [], time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        # A test that fails without a mutation notices none.
        selections = list(dict.fromkeys(m.tests for m in chosen))
        broken = {}
        for tests, (code, text) in zip(selections, pool.map(run_tests, selections), strict=True):
            if code not in (0, 5):  # 5: all of them are slow
                broken[tests] = text
                print(f"FAILS without a mutation: {tests}\n    " + text.replace("\n", "\n    "), flush=True)
        chosen = [m for m in chosen if m.tests not in broken]
        for mutation, (alive, text) in zip(chosen, pool.map(survives, chosen), strict=True):
            print(f"{'SURVIVES' if alive else 'noticed '} {mutation.name}", flush=True)
            if alive:
                survivors.append(mutation.name)
                print("    " + text.replace("\n", "\n    "), flush=True)
    print(
        f"{len(chosen)} mutations in {time.monotonic() - began:.0f} s, {len(survivors)} survive: {survivors or 'none'}"
    )
    return len(survivors) + len(broken)


if __name__ == "__main__":
    sys.exit(main())
