#!/usr/bin/env python3
"""Trains a model of models/ with PyTorch on CPUs, to time it: the peer of fsdp-run.

    llama_torch.py --model models/small-10m/config.json --data FILE [--ranks 2] [--threads 1]
                   [--compile] [--batch 8] [--seq 128] [--steps 12] [--profile]

Same model, initial values, samples, AdamW and clipping as fsdp-run, so the losses are the same too.
More than one rank: FSDP2 (full_shard) over gloo.  A line a step, as fsdp-run --json prints it.
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
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def train_step(model, optimizer, loss_function, batch):
    loss = loss_function(model, *batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach(), norm


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
    if options.ranks == 1:
        work(0, options, 0)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (options, port), options.ranks)


if __name__ == "__main__":
    main()
