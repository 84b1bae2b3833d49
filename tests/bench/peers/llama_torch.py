#!/usr/bin/env python3
"""Trains a model of models/ with PyTorch, to time it: the peer of fsdp-run.

    llama_torch.py --model models/small-10m/config.json --data FILE [--ranks 2] [--threads 1]
                   [--compile] [--batch 8] [--seq 128] [--steps 12] [--profile]
                   [--device cuda [--micro-batch 4]]

Same model, initial values, samples, AdamW and clipping as fsdp-run, so the losses are the same too.
More than one rank: FSDP2 (full_shard) over gloo.  A line a step, as fsdp-run --json prints it.

With cuda: one GPU, bf16, and a master copy and moments in fp32, as fsdp-run keeps them; PyTorch's own
initial values, since drawing billions on the host takes minutes.
"""

import argparse
import json
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden"))
from make_golden import samples  # noqa: E402
from torch_models import initial, load, model_of  # noqa: E402

LR, BETAS, EPS, DECAY, CLIP, SEED = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 1  # fsdp-run's defaults


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    for name, default in (("ranks", 1), ("threads", 1), ("batch", 8), ("seq", 128), ("steps", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--micro-batch", type=int, help="with cuda (default: all of the batch)")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--profile", action="store_true", help="a table of ops instead of lines")
    return parser.parse_args()


def config_of(path):
    config = json.loads(path.read_text())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


def make_model(options, config):
    model = model_of(config)
    load(model, initial(config, SEED))
    if options.compile and options.ranks > 1:  # what torchtitan does: each block, then shard
        for block in model.blocks():
            block.compile()
    if options.ranks > 1:
        mesh = init_device_mesh("cpu", (options.ranks,))
        for module in [*model.blocks(), model]:
            fully_shard(module, mesh=mesh)
    return model


def make_optimizer(model):
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, fused=True)


def loss_of(model, tokens, labels):
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def train_step(model, optimizer, loss_function, batch):
    loss = loss_function(model, *batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), norm


# ---- on a GPU ----


class MasterAdamW:
    """AdamW on fp32 copies of the parameters, which get back what it makes."""

    def __init__(self, model):
        self.params = list(model.parameters())
        self.masters = [p.detach().float() for p in self.params]
        groups = [
            {"params": [m for m in self.masters if m.dim() >= 2], "weight_decay": DECAY},
            {"params": [m for m in self.masters if m.dim() < 2], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, fused=True)

    @torch.no_grad()
    def step(self):
        for master, param in zip(self.masters, self.params):
            master.grad = param.grad.float()
            param.grad = None
        self.adamw.step()
        for master in self.masters:
            master.grad = None
        torch._foreach_copy_(self.params, self.masters)


def gpu_trainer(options, config):
    """The function that does a step of one GPU.  Compiled block by block, as torchtitan does."""
    with torch.device("cuda"):
        model = model_of(config).to(torch.bfloat16)
    optimizer = MasterAdamW(model)
    head_loss = loss_of_hidden
    if options.compile:
        for block in model.blocks():
            block.compile()
        head_loss = torch.compile(loss_of_hidden)
    micro = options.micro_batch or options.batch

    def step_function(batch):
        total = torch.zeros((), device="cuda")
        for tokens, labels in zip(*(part.cuda().split(micro) for part in batch)):
            x = model.embedding()(tokens)
            for block in model.blocks():
                x = block(x, model.turn)
            loss = head_loss(model, x, labels) * len(tokens) / options.batch
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
        optimizer.step()
        return total, norm

    return step_function


def loss_of_hidden(model, x, labels):
    logits = model.head()(model.norm()(x))
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def train_on_gpu(options):
    text = options.data.read_bytes()
    batches = [
        samples(text, SEED, step, options.batch, options.seq)
        for step in range(1, options.steps + 1)
    ]
    time_steps(options, 0, gpu_trainer(options, config_of(options.model)), batches)


# ---- ranks of CPUs ----


def time_steps(options, rank, step_function, batches):
    for step, batch in enumerate(batches, 1):
        if options.ranks > 1:
            dist.barrier()
        start = time.perf_counter()
        loss, norm = step_function(batch)
        if options.ranks > 1:
            dist.all_reduce(loss, dist.ReduceOp.AVG)
            norm = norm.full_tensor()
        loss, norm = loss.item(), norm.item()
        seconds = time.perf_counter() - start
        if rank == 0:
            line = {"step": step, "loss": loss, "grad_norm": norm, "seconds": seconds}
            print(json.dumps(line | {"tokens": options.batch * options.seq}), flush=True)


def profile_steps(options, step_function, batches):
    for batch in batches[:3]:
        step_function(batch)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for batch in batches[3:]:
            step_function(batch)
    table = profile.key_averages(group_by_input_shape=False)
    steps = len(batches) - 3
    for row in sorted(table, key=lambda row: -row.self_cpu_time_total)[:40]:
        print(f"{row.self_cpu_time_total / steps / 1e3:9.2f} ms {row.count // steps:5} {row.key}")


def work(rank, options, port):
    torch.set_num_threads(options.threads)
    if options.ranks > 1:
        dist.init_process_group(
            "gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks
        )
    config, text = config_of(options.model), options.data.read_bytes()
    model = make_model(options, config)
    optimizer = make_optimizer(model)
    whole = options.compile and options.ranks == 1
    loss_function = torch.compile(loss_of) if whole else loss_of
    share = options.batch // options.ranks
    mine = slice(rank * share, (rank + 1) * share)
    batches = []
    for step in range(1, options.steps + 1):
        tokens, labels = samples(text, SEED, step, options.batch, options.seq)
        batches.append((tokens[mine].contiguous(), labels[mine].contiguous()))

    def step_function(batch):
        return train_step(model, optimizer, loss_function, batch)

    if options.profile:
        profile_steps(options, step_function, batches)
    else:
        time_steps(options, rank, step_function, batches)
    if options.ranks > 1:
        dist.destroy_process_group()


def main():
    options = arguments()
    if options.device == "cuda":
        train_on_gpu(options)
        return
    if options.ranks == 1:
        work(0, options, 0)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (options, port), options.ranks)


if __name__ == "__main__":
    main()
