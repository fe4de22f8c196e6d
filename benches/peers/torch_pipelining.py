#!/usr/bin/env python3
"""Training steps of PyTorch on the model of our benchmark `stages`, one schedule for several numbers of
micro-batches: pre-norm Transformer blocks on floats, mean squared error, plain SGD.

    python torch_pipelining.py --schedule 1f1b --stages 2 --micro-batches 4,8 --steps 5

`single` trains on one stage and accumulates over the micro-batches; `gpipe` and `1f1b` run
torch.distributed.pipelining with a process for each stage, over gloo. Prints a line of JSON for each number of
micro-batches: the seconds of each step, after two that warm up, and PyTorch's version. Needs torch 2.9.0, the
LibTorch that `tch` 0.22 binds to.
"""

import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.stage import _PipelineStageBase

WARM_UP = 2
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Block(nn.Module):
    """As `Block` in transformer.rs."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm_mlp = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def attention(self, x):
        batch, seq, dim = x.shape
        width = dim // self.heads
        parts = self.qkv(x).view(batch, seq, 3, self.heads, width).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        scores = (query @ key.transpose(-1, -2) / width**0.5).softmax(-1)
        return self.out((scores @ value).transpose(1, 2).reshape(batch, seq, dim))

    def forward(self, x):
        x = x + self.attention(self.norm_attention(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm_mlp(x))))


def blocks(sizes, count):
    return nn.Sequential(*(Block(sizes.dim, sizes.heads) for _ in range(count)))


def measure(steps, step):
    seconds = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


def tell(micro_batches, seconds):
    line = {"micro_batches": micro_batches, "seconds": seconds, "version": torch.__version__}
    print(json.dumps(line), flush=True)


def setting(sizes):
    """The same for every process: threads, and a batch of inputs and targets."""
    torch.set_num_threads(sizes.threads)
    torch.manual_seed(0)
    shape = (sizes.batch, sizes.seq, sizes.dim)
    return torch.randn(shape), torch.randn(shape)


def single(sizes):
    inputs, targets = setting(sizes)
    for count in sizes.micro_batches:
        model, loss = blocks(sizes, sizes.layers), nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)

        def step():
            optimizer.zero_grad()
            for x, y in zip(inputs.chunk(count), targets.chunk(count)):
                (loss(model(x), y) / count).backward()
            optimizer.step()

        tell(count, measure(sizes.steps, step))


def stage(rank, sizes, port):
    inputs, targets = setting(sizes)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=sizes.stages)
    # 2.9.0 warms up its channels by sending whole numbers into floats, which gloo refuses.
    if hasattr(_PipelineStageBase, "_get_init_p2p_neighbors_ops"):
        _PipelineStageBase._get_init_p2p_neighbors_ops = lambda self: []
    for count in sizes.micro_batches:
        model = blocks(sizes, sizes.layers // sizes.stages)
        shape = torch.zeros(sizes.batch // count, sizes.seq, sizes.dim)
        arguments = {"input_args": (shape,), "output_args": (shape,)}
        part = PipelineStage(model, rank, sizes.stages, torch.device("cpu"), **arguments)
        schedule = SCHEDULES[sizes.schedule](part, n_microbatches=count, loss_fn=nn.MSELoss())
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)

        def step():
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(inputs)
            elif rank == sizes.stages - 1:
                schedule.step(target=targets)
            else:
                schedule.step()
            optimizer.step()

        seconds = measure(sizes.steps, step)
        if rank == 0:
            tell(count, seconds)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", choices=["single", *SCHEDULES], required=True)
    parser.add_argument("--micro-batches", type=lambda text: [int(n) for n in text.split(",")], required=True)
    defaults = {"stages": 2, "steps": 5, "threads": 1, "dim": 256, "heads": 4, "layers": 8, "seq": 64, "batch": 32}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    sizes = parser.parse_args()
    if sizes.layers % sizes.stages or any(sizes.batch % count for count in sizes.micro_batches):
        parser.error("blocks must divide evenly among stages, samples among micro-batches")
    if sizes.schedule == "single":
        single(sizes)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(stage, (sizes, port), nprocs=sizes.stages)


if __name__ == "__main__":
    main()
