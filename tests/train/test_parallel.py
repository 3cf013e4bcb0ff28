"""A step on several processes is the step of one, however the network is spread over them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.floors import FLOORS
from support.forks import on_processes
from support.networks import BOS_ID, VOCAB, network
from support.runs import tiny_recipe
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from hdlm.config.model import DenoiserConfig
from hdlm.config.recipe import OptimizerSettings
from hdlm.data.packed import Rows
from hdlm.nn.transformer import Denoiser
from hdlm.processes import World
from hdlm.train import distributed
from hdlm.train.batch import Batches
from hdlm.train.distributed import full_tensor
from hdlm.train.loss import LossModule
from hdlm.train.step import Stepper

CPU, LENGTH = torch.device("cpu"), 24


def stepper(world, backend="reference", **changes):
    """A small run without dropout, in several micro-batches; matrices that four processes share unevenly."""
    recipe = tiny_recipe("x", global_batch=12, micro_batch=1, **changes)
    recipe = replace(recipe, model=replace(recipe.model, dropout=0.0, width=36, condition_width=6))
    torch.manual_seed(1)
    model = Denoiser(DenoiserConfig(vocab_size=VOCAB, **vars(recipe.model)))
    process = recipe.process.build(VOCAB)
    rows = Rows(np.random.default_rng(0).integers(0, VOCAB, (9, LENGTH)))
    batches = Batches(recipe, rows, process, bos_id=BOS_ID, device=CPU)
    return Stepper(recipe, model, process, batches, world, backend=backend)


def steps(world, count=3, **how):
    """The losses of a few steps, and what has become of the weights and their average."""
    run = stepper(world, **how)
    losses = [run.step().loss for _ in range(count)]
    return losses, {name: full_tensor(tensor).clone() for name, tensor in run.state.tensors()}


def assert_near(one, other):
    assert one[0] == pytest.approx(other[0], abs=1e-5)
    assert one[1].keys() == other[1].keys()
    for name, tensor in one[1].items():
        torch.testing.assert_close(tensor, other[1][name], atol=2e-4, rtol=1e-3)


MUON = OptimizerSettings(kind="muon", lr=3e-3, warmup=5)
SPREAD = {
    "ddp": {"sharded": False},
    "fsdp": {"sharded": True},
    "hsdp": {"sharded": True, "hybrid": True},
    "recomputed": {"sharded": True, "recompute": True},
    "muon": {"sharded": True, "optimizer": MUON},
}
EVERY_WAY = [pytest.param(how, floor, marks=pytest.mark.slow) for how in SPREAD.values() for floor in FLOORS]
ALL_AT_ONCE = ({"sharded": True, "hybrid": True, "recompute": True, "optimizer": MUON}, FLOORS[-1])


@pytest.mark.parametrize(("how", "backend"), [ALL_AT_ONCE, *EVERY_WAY])
def test_four_processes_as_two_nodes_are_one(how, backend, tmp_path):
    alone = steps(World(0, 1, CPU), backend=backend, **how)
    found = on_processes(4, lambda world: steps(world, backend=backend, **how), tmp_path, nodes=2)
    assert_near(found[0], alone)
    for other in found[1:]:
        assert other[0] == found[0][0]
        assert all(torch.equal(found[0][1][name], tensor) for name, tensor in other[1].items())


@pytest.mark.parametrize("backend", FLOORS)
def test_what_is_recomputed_is_the_same_bit_for_bit(backend):
    """Dropout included: the draws come again."""
    found = []
    for recompute in (False, True):
        run = stepper(World(0, 1, CPU), backend=backend, recompute=recompute)
        for block in run.state.model.blocks:
            block.dropout.p = 0.3
        calls = []
        run.state.model.blocks[0].norm1.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found.append(([run.step().loss for _ in range(2)], dict(run.state.tensors()), len(calls)))
    (losses, tensors, once), (again, others, twice) = found
    assert losses == again
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert twice == 2 * once > 0


def test_nodes_have_copies_and_their_processes_shards(tmp_path):
    def spread(world):
        found = stepper(world, sharded=True, hybrid=True).state.model.embedding
        return found.placements, tuple(found.device_mesh.shape)

    assert on_processes(4, spread, tmp_path, nodes=2) == [((Replicate(), Shard(0)), (2, 2))] * 4
    assert on_processes(2, spread, tmp_path, nodes=1) == [((Shard(0),), (2,))] * 2


def test_nodes_of_different_sizes_are_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="hybrid = True is not accepted: 3 processes are not equally many on each"):
        distributed.parallelize(None, World(0, 3, CPU), sharded=True, hybrid=True)


class Reductions(TorchDispatchMode):
    """Counts how often a gradient is added up over processes."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        self.count += "reduce_scatter" in str(function)
        return function(*arguments, **(settings or {}))


@pytest.mark.parametrize("hybrid", [False, True], ids=["fsdp", "hsdp"])
def test_gradients_are_exchanged_at_the_last_micro_batch_alone(hybrid, tmp_path):
    """Three micro-batches a process: as many reductions as one would need."""

    def counts_of(world):
        counts = []
        for micro_batch in (1, 3):
            run = stepper(world, sharded=True, hybrid=hybrid)
            run.recipe = replace(run.recipe, micro_batch=micro_batch)
            assert len(run._micro_batches(0)) == 3 // micro_batch
            with Reductions() as reductions:
                run.step()
            counts.append(reductions.count)
        return counts

    assert on_processes(4, counts_of, tmp_path, nodes=2) == [[3, 3]] * 4, "two blocks and the rest"


def test_blocks_are_gathered_in_half_precision_on_a_gpu_alone():
    assert distributed.block_precision(CPU) == MixedPrecisionPolicy()
    found = distributed.block_precision(torch.device("cuda"))
    assert (found.param_dtype, found.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert not found.cast_forward_inputs


def test_a_lower_precision_is_that_of_blocks_only(tmp_path, monkeypatch):
    """float64 for the shards and float32 for what is gathered, as this machine has no half precision."""
    policy = MixedPrecisionPolicy(torch.float32, reduce_dtype=torch.float64, cast_forward_inputs=False)
    monkeypatch.setattr(distributed, "block_precision", lambda device: policy)

    def dtypes(world):
        module = LossModule(network().double(), None)
        distributed.parallelize(module, world, sharded=True)
        block = module.denoiser.blocks[0]
        found = [block.mlp.inner.weight.dtype]
        module.unshard()
        block.unshard()
        return [*found, block.mlp.inner.weight.dtype, module.denoiser.head.weight.dtype]

    assert on_processes(2, dtypes, tmp_path) == [[torch.float64, torch.float32, torch.float64]] * 2
