#!/usr/bin/env python3
"""Golden training runs in layouts: PyTorch's own FSDP2, DDP, tensor and pipeline parallelism.

Only needed to make the layouts_*.json beside this one anew: python3 make_layouts.py [FOLDER].
README.md here says what is in them.  CPU and gloo, 1 to 4 processes.
"""

import json
import math
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from make_golden import (
    ADAMW,
    LLAMA,
    SGD,
    TEXT,
    fnv1a,
    make_text,
    optimizer_of,
    samples,
    sums,
    worst_difference,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch_models import initial, kv_heads, load, model_of, num_layers

STEPS = 10
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


# Of strategies, what PyTorch calls them.
FULLY_SHARD = {"full_shard": True, "shard_grad_op": False, "hybrid_shard": True}
DDP_AXIS = {"no_shard": "dp_replicate", "shard_optimizer": "dp_shard"}

# ---- tensor parallelism ----


class Whole(ParallelStyle):
    """Every rank of the group computes all of it."""

    def _apply(self, module, device_mesh):
        return distribute_module(module, device_mesh)


def block_styles(block, stream, keys_split):
    """By name within a block; @stream: how the residual stream lies on the ranks."""
    llama = hasattr(block, "self_attn")
    attention = "self_attn" if llama else "attn"
    keys = ColwiseParallel() if keys_split else Whole()
    styles = {
        f"{attention}.q_proj": ColwiseParallel(),
        f"{attention}.k_proj": keys,
        f"{attention}.v_proj": keys,
        f"{attention}.{'o_proj' if llama else 'c_proj'}": RowwiseParallel(output_layouts=stream),
        f"mlp.{'down_proj' if llama else 'c_proj'}": RowwiseParallel(output_layouts=stream),
        "mlp": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),)),
        # A Llama's attention also takes the tables of positions.
        attention: PrepareModuleInput(
            input_layouts=(stream, None) if llama else (stream,),
            desired_input_layouts=(Replicate(), None) if llama else (Replicate(),),
        ),
    }
    for name in ("gate_proj", "up_proj") if llama else ("c_fc",):
        # Not local: a local tensor does not say that the last rank's is shorter.
        styles[f"mlp.{name}"] = ColwiseParallel(use_local_output=False)
    if stream == Shard(1):
        for name in ("input_layernorm", "post_attention_layernorm") if llama else ("ln_1", "ln_2"):
            styles[name] = SequenceParallel()
    return styles


def split_tensors(model, mesh, sequence, num_keys):
    stream = Shard(1) if sequence else Replicate()
    embedding, norm, head = model.embedding(), model.norm(), model.head()
    if embedding is not None:
        # Learned positions are added before tokens are split.
        whole = model.positions() is not None
        out = Replicate() if whole else stream
        parallelize_module(
            embedding, mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=out)
        )
        if whole and sequence:
            model.split_tokens = lambda x: (
                DTensor.from_local(x, mesh, [Replicate()]).redistribute(placements=[stream])
            ).to_local()
    for block in model.blocks():
        parallelize_module(block, mesh, block_styles(block, stream, num_keys % mesh.size() == 0))
    if head is not None:
        if sequence:
            parallelize_module(norm, mesh, SequenceParallel())
        parallelize_module(
            head, mesh, ColwiseParallel(input_layouts=stream, output_layouts=Replicate())
        )
    model.tie()


# ---- one rank of a run ----

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zb_h1": ScheduleInterleavedZeroBubble,
}


def stages_of(run, layers):
    """Blocks of each stage, consecutive; the first ones have one more."""
    count = run["layout"]["pp"] * run["virtual_stages"]
    starts = [s * (layers // count) + min(s, layers % count) for s in range(count + 1)]
    return [list(range(a, b)) for a, b in zip(starts, starts[1:])]


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def full(tensor):
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


class Rank:
    def __init__(self, case, run, values):
        self.case, self.run = case, run
        sizes = tuple(run["layout"][axis] for axis in AXES)
        self.mesh = init_device_mesh("cpu", sizes, mesh_dim_names=AXES)
        self.at = dict(zip(AXES, self.mesh.get_coordinate()))
        self.build_parts(values)
        self.distribute()
        self.optimizer = self.make_optimizer()
        self.losses = []

    def group(self, axis):
        return self.mesh[axis].get_group()

    def build_parts(self, values):
        """The stages of this rank: itself, itself + pp, ..."""
        stages = stages_of(self.run, num_layers(self.case["config"]))
        self.stages = range(self.at["pp"], len(stages), self.run["layout"]["pp"])
        self.parts, self.num_stages = [], len(stages)
        for s in self.stages:
            part = model_of(self.case["config"], stages[s], s == 0, s == len(stages) - 1)
            load(part, values)
            self.parts.append(part)

    def distribute(self):
        run, layout = self.run, self.run["layout"]
        self.wrapped = self.parts
        for part in self.parts:
            if layout["tp"] > 1:
                split_tensors(part, self.mesh["tp"], run["sequence"], kv_heads(self.case["config"]))
            if run["strategy"] in FULLY_SHARD:
                mesh = self.mesh["dp_replicate", "dp_shard"]
                mesh = mesh if layout["dp_replicate"] > 1 else self.mesh["dp_shard"]
                reshard = FULLY_SHARD[run["strategy"]]
                for module in [*part.blocks(), part]:
                    fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
        if run["strategy"] in DDP_AXIS and layout[DDP_AXIS[run["strategy"]]] > 1:
            group = self.group(DDP_AXIS[run["strategy"]])
            self.wrapped = [DistributedDataParallel(p, process_group=group) for p in self.parts]
        if layout["pp"] > 1:
            self.schedule = self.make_schedule()

    def make_schedule(self):
        device, group = torch.device("cpu"), self.group("pp")
        stages = [
            PipelineStage(part, s, self.num_stages, device, group=group)
            for s, part in zip(self.stages, self.wrapped)
        ]
        kind = SCHEDULES[self.run["schedule"]]
        single = issubclass(kind, PipelineScheduleSingle)
        return kind(stages[0] if single else stages, self.run["micro_batches"], cross_entropy)

    def make_optimizer(self):
        plain = optimizer_of(self.run["setting"], [p for _, p in self.parameters()])
        if self.run["strategy"] != "shard_optimizer":
            return plain
        return ZeroRedundancyOptimizer(
            plain.param_groups, type(plain), self.group("dp_shard"), foreach=False
        )

    def parameters(self):
        """(name, parameter) of what is here; a tied head of a stage of its own has its own name."""
        return [named for part in self.parts for named in part.named_parameters()]

    # ---- a step ----

    def local_samples(self, step):
        """Those of this data rank, micro-batches one behind the other."""
        layout, case = self.run["layout"], self.case
        ranks = layout["dp_replicate"] * layout["dp_shard"]
        rank = self.at["dp_replicate"] * layout["dp_shard"] + self.at["dp_shard"]
        text, batch = make_text(case["text"]), case["global_batch"]
        count = self.run["micro_batches"]
        size = batch // ranks // count
        mine = [(m * ranks + rank) * size + b for m in range(count) for b in range(size)]
        tokens, labels = samples(text, case["seed"], step, batch, case["seq_len"])
        return tokens[mine], labels[mine]

    def accumulate(self, tokens, labels):
        model, count = self.wrapped[0], self.run["micro_batches"]
        losses = []
        for m, (x, y) in enumerate(zip(tokens.chunk(count), labels.chunk(count))):
            sync = m == count - 1
            hold = model.no_sync() if hasattr(model, "no_sync") and not sync else nullcontext()
            if self.run["strategy"] in FULLY_SHARD:
                model.set_requires_gradient_sync(sync or self.run["accumulate"] == "sharded")
            with hold:
                loss = cross_entropy(model(x), y)
                (loss / count).backward()
            losses.append(loss.detach())
        return torch.stack(losses).double().mean()

    def pipeline(self, tokens, labels):
        losses = []
        first, last = 0 in self.stages, self.num_stages - 1 in self.stages
        self.schedule.step(
            *([tokens] if first else []), target=labels if last else None, losses=losses
        )
        loss = torch.stack(losses).double().mean() if last else torch.zeros((), dtype=torch.double)
        dist.all_reduce(loss.detach_(), group=self.group("pp"))
        return loss

    def settle_gradients(self):
        """As parameters lie; both copies of a tied tensor get the sum of their gradients."""
        for _, p in self.parameters():
            if isinstance(p, DTensor) and p.grad.placements != p.placements:
                p.grad = p.grad.redistribute(placements=p.placements)
        if self.run["layout"]["pp"] > 1 and self.parts[0].tied:
            copies = (self.parts[0].EMBEDDING, "lm_head.weight")
            for p in (p for name, p in self.parameters() if name in copies):
                local = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
                dist.all_reduce(local, group=self.group("pp"))

    def counted(self):
        """Parameters whose norm counts here: of copies, the embedding."""
        tied = self.parts[0].tied
        return [(n, p) for n, p in self.parameters() if not (tied and n == "lm_head.weight")]

    def norm(self):
        grads = [full(p.grad) for _, p in self.counted()]
        square = torch.nn.utils.get_total_norm(grads).double() ** 2
        dist.all_reduce(square, group=self.group("pp"))
        return square.sqrt()

    def clip(self, norm):
        limit = self.run["setting"]["clip_norm"]
        factor = min(1.0, limit / (norm.item() + 1e-6)) if limit else 1.0
        for _, p in self.parameters():
            p.grad.mul_(factor)

    def step(self, step):
        """Loss, norm, and sums of the gradients before clipping."""
        self.optimizer.zero_grad()
        run_it = self.pipeline if self.run["layout"]["pp"] > 1 else self.accumulate
        loss = run_it(*self.local_samples(step))
        for axis in ("dp_replicate", "dp_shard"):
            dist.all_reduce(loss, dist.ReduceOp.AVG, self.group(axis))
        self.settle_gradients()
        norm = self.norm()
        gradients = {name: sums(full(p.grad)) for name, p in self.counted()} if step == 1 else None
        self.clip(norm)
        self.optimizer.step()
        return loss.item(), norm.item(), gradients


def merged(part):
    """One dictionary of all ranks'."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, part)
    return {name: value for values in everyone for name, value in values.items()}


def train(case, run, values):
    torch.manual_seed(dist.get_rank())  # whatever is drawn must not matter
    rank = Rank(case, run, values)
    out = dict(run, loss=[], grad_norm=[])
    for step in range(1, STEPS + 1):
        loss, norm, gradients = rank.step(step)
        out["loss"].append(loss)
        out["grad_norm"].append(norm)
        if step == 1:
            out["gradients"] = merged(gradients)
    out["final"] = merged({name: sums(full(p)) for name, p in rank.counted()})
    return out


# ---- the cases ----


def run(setting, strategy="no_shard", micro_batches=1, accumulate="unsharded", **more):
    choices = {"schedule": "1f1b", "virtual_stages": 1, "sequence": False}
    return {
        "layout": {axis: more.get(axis, 1) for axis in AXES},
        "strategy": strategy,
        "accumulate": accumulate,
        "micro_batches": micro_batches,
        **{key: more.get(key, value) for key, value in choices.items()},
        "setting": setting,
    }


UNTIED = LLAMA | {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 250,
    "vocab_size": 257,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.15,
}
TIED = UNTIED | {
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "tie_word_embeddings": True,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": 130,
    "vocab_size": 257,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.15,
    "tie_word_embeddings": True,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "torch_dtype": "float32",
}
SGD_01 = SGD | {"lr": 0.1}


def everywhere(a, b):
    """Layouts that any model can have, with one setting and the other by turns."""
    return [
        run(a),
        run(b),
        run(b, dp_replicate=2, micro_batches=2),
        run(b, "shard_optimizer", dp_shard=2),
        run(a, "shard_grad_op", dp_shard=2, micro_batches=3),
        run(a, "full_shard", dp_shard=2),
        run(b, "full_shard", dp_shard=2, micro_batches=2, accumulate="sharded"),
        run(a, tp=2, micro_batches=2),
        run(b, tp=2, sequence=True),
        run(a, pp=2, micro_batches=4, schedule="gpipe"),
        run(b, pp=2, micro_batches=4),
        run(a, pp=2, micro_batches=3, schedule="zb_h1"),
        run(b, "full_shard", dp_shard=3, micro_batches=2),
        run(a, "full_shard", dp_shard=4, micro_batches=3, accumulate="sharded"),
        run(b, "hybrid_shard", dp_replicate=2, dp_shard=2),
        run(a, tp=4, sequence=True),
        run(a, "full_shard", dp_shard=2, tp=2),
        run(b, "full_shard", dp_shard=2, tp=2, sequence=True, micro_batches=2),
        run(a, "full_shard", pp=2, dp_shard=2, micro_batches=3),
        run(b, pp=2, tp=2, micro_batches=2),
    ]


DEEP = [
    run(ADAMW, pp=4, micro_batches=4),
    run(SGD_01, pp=4, micro_batches=6, schedule="zb_h1"),
    run(SGD_01, pp=2, micro_batches=4, schedule="interleaved", virtual_stages=2),
    run(
        ADAMW,
        "full_shard",
        pp=2,
        dp_shard=2,
        micro_batches=2,
        schedule="interleaved",
        virtual_stages=2,
    ),
]
SIZES = {"global_batch": 12, "seq_len": 16, "text": TEXT}
CASES = {
    "layouts_llama": SIZES
    | {"config": UNTIED, "seed": 3, "runs": everywhere(SGD_01, ADAMW) + DEEP},
    "layouts_llama_tied": SIZES | {"config": TIED, "seed": 4, "runs": everywhere(ADAMW, SGD_01)},
    "layouts_gpt2": SIZES | {"config": GPT2, "seed": 6, "runs": everywhere(SGD_01, ADAMW)},
}


def world(run):
    return math.prod(run["layout"].values())


def work(rank, ranks, folder, starts):
    """One process of @ranks: every run that takes so many."""
    meet = f"file://{folder}/meet{ranks}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    for name, case in CASES.items():
        for i, row in enumerate(case["runs"]):
            if world(row) != ranks:
                continue
            out = train(case, row, starts[name])
            if rank == 0:
                (folder / f"{name}.{i}").write_text(json.dumps(out))
    dist.destroy_process_group()


# ---- the files ----


def rounded(value, digits):
    return float(f"{value:.{digits}g}")


def comparable(names):
    """A bias of keys moves all scores of a query alike: its gradient is rounding only."""
    return [name for name in names if not name.endswith("k_proj.bias")]


def by_tensor(values, names):
    """[sum, sum of squares] in the order of @names."""
    return [[rounded(values[name][key], 7) for key in ("sum", "sum_squares")] for name in names]


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def row_text(row, names):
    """A run on one line.  Nine digits tell any two of float32 apart."""
    row = dict(row, setting=row["setting"]["name"])
    for key in ("loss", "grad_norm"):
        row[key] = [rounded(value, 9) for value in row[key]]
    for key in ("gradients", "final"):
        row[key] = by_tensor(row[key], names)
    return compact(row)


def case_text(case, rows, start):
    names = comparable(start)
    head = {
        "torch": torch.__version__,
        **{key: case[key] for key in ("seed", "global_batch", "seq_len", "text")},
        "text_fnv1a": f"{fnv1a(make_text(case['text'])):016x}",
        "config_json": json.dumps(case["config"], indent=2) + "\n",
        "settings": {row["setting"]["name"]: row["setting"] for row in rows},
        "tensors": names,
        "elements": [start[name].numel() for name in names],
        "initial": by_tensor({name: sums(start[name]) for name in names}, names),
    }
    lines = [f" {compact(key)}: {compact(value)}" for key, value in head.items()]
    runs = ",\n".join("  " + row_text(row, names) for row in rows)
    return "{\n" + ",\n".join(lines) + ',\n "runs": [\n' + runs + "\n ]\n}\n"


def report(name, rows):
    """How far the layouts are from one rank with the same setting."""
    for row in rows:
        one = next(r for r in rows if world(r) == 1 and r["setting"] == row["setting"])
        axes = " ".join(f"{a}={n}" for a, n in row["layout"].items() if n > 1) or "one rank"
        what = f"{axes} {row['strategy']} {row['schedule'] if row['layout']['pp'] > 1 else ''}"
        print(f"{name:19} {row['setting']['name']:6} {what:45} {worst_difference(row, one):.1e}")


def main():
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    starts = {name: initial(case["config"], case["seed"]) for name, case in CASES.items()}
    with TemporaryDirectory() as folder:
        for ranks in range(1, 5):
            mp.spawn(work, (ranks, Path(folder), starts), ranks)
        for name, case in CASES.items():
            files = [Path(folder) / f"{name}.{i}" for i in range(len(case["runs"]))]
            rows = [json.loads(file.read_text()) for file in files]
            (target / f"{name}.json").write_text(case_text(case, rows, starts[name]))
            report(name, rows)


if __name__ == "__main__":
    main()
