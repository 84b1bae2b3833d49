#!/usr/bin/env python3
"""Golden training runs: small Llamas and a GPT-2 in PyTorch, written without looking at our C.

Only needed to make the files beside this one anew: python3 make_golden.py [FOLDER].
README.md here says what is in them.  Attention, normalisation, loss, backward, clipping and AdamW
are torch's own; the conventions (names, initial values, samples) are the project's.
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

MASK = (1 << 64) - 1
GOLDEN_RATIO = 0x9E3779B97F4A7C15
STEPS = 20


def mix(x):
    """SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def at(state, n):
    """Value n of the counter-based generator with that state."""
    return mix((state + n * GOLDEN_RATIO) & MASK)


def seeded(seed):
    return mix((seed + GOLDEN_RATIO) & MASK)


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def normal(state, element):
    """Box and Muller, one value of the pair, in double."""
    u1 = ((at(state, 2 * element) >> 11) + 1) * 2.0**-53
    u2 = (at(state, 2 * element + 1) >> 11) * 2.0**-53
    return math.sqrt(-2.0 * math.log(u1)) * math.cos(2.0 * math.pi * u2)


# ---- the model ----


def gpt2_shapes(c):
    """The same with c_attn, which Hugging Face stores as one, in its three parts, and (out, in)."""
    hidden, ffn = c["n_embd"], c["n_inner"]
    out = {
        "transformer.wte.weight": (c["vocab_size"], hidden),
        "transformer.wpe.weight": (c["n_positions"], hidden),
    }
    for i in range(c["n_layer"]):
        layer = f"transformer.h.{i}."
        matrices = {name: (hidden, hidden) for name in ("q_proj", "k_proj", "v_proj", "c_proj")}
        matrices = {"attn." + name: shape for name, shape in matrices.items()}
        matrices |= {"mlp.c_fc": (ffn, hidden), "mlp.c_proj": (hidden, ffn)}
        for norm in ("ln_1", "ln_2"):
            out[f"{layer}{norm}.weight"] = out[f"{layer}{norm}.bias"] = (hidden,)
        for name, shape in matrices.items():
            out[f"{layer}{name}.weight"], out[f"{layer}{name}.bias"] = shape, shape[:1]
    out["transformer.ln_f.weight"] = out["transformer.ln_f.bias"] = (hidden,)
    return out


def shapes(c):
    """Name -> shape, in Hugging Face's order."""
    if c["model_type"] == "gpt2":
        return gpt2_shapes(c)
    hidden, ffn, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    queries, keys = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        out[layer + "self_attn.q_proj.weight"] = (queries, hidden)
        out[layer + "self_attn.k_proj.weight"] = (keys, hidden)
        out[layer + "self_attn.v_proj.weight"] = (keys, hidden)
        out[layer + "self_attn.o_proj.weight"] = (hidden, queries)
        out[layer + "mlp.gate_proj.weight"] = (ffn, hidden)
        out[layer + "mlp.up_proj.weight"] = (ffn, hidden)
        out[layer + "mlp.down_proj.weight"] = (hidden, ffn)
        out[layer + "input_layernorm.weight"] = (hidden,)
        out[layer + "post_attention_layernorm.weight"] = (hidden,)
    out["model.norm.weight"] = (hidden,)
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], hidden)
    return out


def initial(c, seed, dtype):
    params = {}
    for name, shape in shapes(c).items():
        if len(shape) == 1:
            values = [0.0 if name.endswith("bias") else 1.0] * shape[0]
        else:
            std = c["initializer_range"]
            if name.endswith(("o_proj.weight", "down_proj.weight", "c_proj.weight")):
                std /= math.sqrt(2 * (c.get("num_hidden_layers") or c["n_layer"]))
            state = seeded(seed) ^ fnv1a(name.encode())
            values = [std * normal(state, e) for e in range(math.prod(shape))]
        # Rounded to float32 whatever the type of the run: both types start from equal values.
        tensor = torch.tensor(values, dtype=torch.float64).to(torch.float32).to(dtype)
        params[name] = tensor.reshape(shape).requires_grad_()
    return params


def rope_frequencies(c):
    """theta^(-2i/D), then the llama3 scaling as config.json's rope_scaling says."""
    dim, scaling, out = c["head_dim"], c.get("rope_scaling"), []
    for i in range(dim // 2):
        freq = c["rope_theta"] ** (-2.0 * i / dim)
        if scaling:
            factor, context = scaling["factor"], scaling["original_max_position_embeddings"]
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            turns = context * freq / (2 * math.pi)
            share = min(1.0, max(0.0, (turns - low) / (high - low)))
            freq = share * freq + (1 - share) * freq / factor
        out.append(freq)
    return out


def rotate(x, angles):
    """x (B, heads, T, D): the pair (x_i, x_{i + D/2}) as a complex number, turned by its angle."""
    half = x.shape[-1] // 2
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat([turned.real, turned.imag], dim=-1)


def gpt2_loss_of(c, p, tokens, labels):
    batch, seq = tokens.shape
    hidden, heads = c["n_embd"], c["n_head"]

    def norm(x, name):
        weight, bias = p[f"transformer.{name}.weight"], p[f"transformer.{name}.bias"]
        return F.layer_norm(x, (hidden,), weight, bias, eps=c["layer_norm_epsilon"])

    def linear(x, name):
        return F.linear(x, p[f"transformer.{name}.weight"], p[f"transformer.{name}.bias"])

    def split(x):
        return x.view(batch, seq, heads, hidden // heads).transpose(1, 2)

    x = F.embedding(tokens, p["transformer.wte.weight"])
    x = x + F.embedding(torch.arange(seq), p["transformer.wpe.weight"])
    for i in range(c["n_layer"]):
        h = norm(x, f"h.{i}.ln_1")
        q, k, v = (split(linear(h, f"h.{i}.attn.{name}_proj")) for name in "qkv")
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, seq, hidden)
        x = x + linear(mixed, f"h.{i}.attn.c_proj")
        h = F.gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
        x = x + linear(h, f"h.{i}.mlp.c_proj")
    logits = F.linear(norm(x, "ln_f"), p["transformer.wte.weight"])
    return F.cross_entropy(logits.reshape(-1, c["vocab_size"]), labels.reshape(-1))


def loss_of(c, p, tokens, labels):
    """Mean cross entropy of tokens (B, T) against labels (B, T)."""
    if c["model_type"] == "gpt2":
        return gpt2_loss_of(c, p, tokens, labels)
    batch, seq = tokens.shape
    heads, kv_heads, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    dtype = p["model.norm.weight"].dtype
    angles = torch.outer(
        torch.arange(seq, dtype=torch.float64),
        torch.tensor(rope_frequencies(c), dtype=torch.float64),
    ).to(dtype)

    def norm(x, name):
        return F.rms_norm(x, (c["hidden_size"],), p[name], eps=c["rms_norm_eps"])

    def split(x, count):
        return x.view(batch, seq, count, dim).transpose(1, 2)

    x = F.embedding(tokens, p["model.embed_tokens.weight"])
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        h = norm(x, layer + "input_layernorm.weight")
        q = split(F.linear(h, p[layer + "self_attn.q_proj.weight"]), heads)
        k = split(F.linear(h, p[layer + "self_attn.k_proj.weight"]), kv_heads)
        v = split(F.linear(h, p[layer + "self_attn.v_proj.weight"]), kv_heads)
        mixed = F.scaled_dot_product_attention(
            rotate(q, angles), rotate(k, angles), v, is_causal=True, enable_gqa=True
        )
        mixed = mixed.transpose(1, 2).reshape(batch, seq, heads * dim)
        x = x + F.linear(mixed, p[layer + "self_attn.o_proj.weight"])
        h = norm(x, layer + "post_attention_layernorm.weight")
        gate = F.silu(F.linear(h, p[layer + "mlp.gate_proj.weight"]))
        up = F.linear(h, p[layer + "mlp.up_proj.weight"])
        x = x + F.linear(gate * up, p[layer + "mlp.down_proj.weight"])
    head = "model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"
    logits = F.linear(norm(x, "model.norm.weight"), p[head])
    return F.cross_entropy(logits.reshape(-1, c["vocab_size"]), labels.reshape(-1))


# ---- data and training ----


def make_text(recipe):
    state = seeded(recipe["seed"])
    return bytes(recipe["first"] + at(state, k) % recipe["count"] for k in range(recipe["bytes"]))


def samples(text, seed, step, batch, seq):
    rows = []
    for i in range(batch):
        start = at(at(seeded(seed), step), i) % len(text)
        rows.append([text[(start + j) % len(text)] for j in range(seq + 1)])
    window = torch.tensor(rows)
    return window[:, :-1], window[:, 1:]


def optimizer_of(setting, params):
    if setting["name"] == "sgd":
        return torch.optim.SGD(params, lr=setting["lr"])
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": setting["weight_decay"]},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (setting["beta1"], setting["beta2"])
    return torch.optim.AdamW(groups, lr=setting["lr"], betas=betas, eps=setting["eps"])


def sums(tensor):
    wide = tensor.detach().double()
    return {"sum": wide.sum().item(), "sum_squares": wide.square().sum().item()}


def entries(tensor):
    flat = tensor.detach().reshape(-1)
    index = [0, flat.numel() // 3, 2 * flat.numel() // 3, flat.numel() - 1]
    return {"index": index, "value": [flat[i].item() for i in index], **sums(tensor)}


def train(case, setting, dtype):
    c = case["config"]
    params = initial(c, case["seed"], dtype)
    optimizer = optimizer_of(setting, list(params.values()))
    text = make_text(case["text"])
    run = {"setting": setting, "loss": [], "grad_norm": []}
    start = {name: entries(p) for name, p in params.items()}
    for step in range(1, STEPS + 1):
        tokens, labels = samples(text, case["seed"], step, case["global_batch"], case["seq_len"])
        optimizer.zero_grad()
        loss = loss_of(c, params, tokens, labels)
        loss.backward()
        if step == 1:
            gradients = {name: entries(p.grad) for name, p in params.items()}
        limit = setting["clip_norm"] or math.inf
        norm = torch.nn.utils.clip_grad_norm_(params.values(), limit)
        optimizer.step()
        run["loss"].append(loss.item())
        run["grad_norm"].append(norm.item())
    run["final"] = {name: sums(p) for name, p in params.items()}
    return run, start, gradients


def worst_difference(a, b):
    return max(
        abs(x - y) / abs(y)
        for key in ("loss", "grad_norm")
        for x, y in zip(a[key], b[key], strict=True)
    )


def golden(case):
    out = {
        "torch": torch.__version__,
        **{key: case[key] for key in ("seed", "global_batch", "seq_len", "text")},
        "text_fnv1a": f"{fnv1a(make_text(case['text'])):016x}",
        "config_json": json.dumps(case["config"], indent=2) + "\n",
        "runs": [],
    }
    for setting in case["settings"]:
        run, out["initial"], out["gradients"] = train(case, setting, torch.float32)
        reference, _, _ = train(case, setting, torch.float64)
        run["worst_difference_to_fp64"] = worst_difference(run, reference)
        out["runs"].append(run)
    return out


# ---- the cases ----

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "max_position_embeddings": 256,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "torch_dtype": "float32",
}
# Initial values are large enough for attention to be far from uniform: a wrong rotation, mask, head
# mapping, epsilon or decay moves a loss by 1e-4 or more, thirty times the noise of fp32.
PLAIN = LLAMA | {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 257,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "initializer_range": 0.15,
}
TIED_SCALED = LLAMA | {
    "num_key_value_heads": 1,
    "head_dim": 12,
    "intermediate_size": 250,
    "vocab_size": 300,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-4,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "initializer_range": 0.16,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "n_positions": 40,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 250,
    "vocab_size": 257,
    "layer_norm_epsilon": 1e-4,
    "initializer_range": 0.15,
    "torch_dtype": "float32",
}
SGD = {"name": "sgd", "clip_norm": 0}
ADAMW = {
    "name": "adamw",
    "lr": 0.003,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
}
TEXT = {"bytes": 4096, "seed": 7, "first": 32, "count": 95}
CASES = {
    "plain": {
        "config": PLAIN,
        "seed": 1,
        "global_batch": 4,
        "seq_len": 16,
        "text": TEXT,
        "settings": [SGD | {"lr": 0.1}, ADAMW],
    },
    "tied_scaled": {
        "config": TIED_SCALED,
        "seed": 5,
        "global_batch": 4,
        "seq_len": 33,
        "text": TEXT,
        "settings": [SGD | {"lr": 0.05}, ADAMW],
    },
    "gpt2": {
        "config": GPT2,
        "seed": 3,
        "global_batch": 4,
        "seq_len": 33,
        "text": TEXT,
        "settings": [SGD | {"lr": 0.05}, ADAMW],
    },
}


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    torch.set_num_threads(1)
    for name, case in CASES.items():
        result = golden(case)
        (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        for run in result["runs"]:
            print(
                f"{name:12} {run['setting']['name']:6} loss {run['loss'][0]:.6f} ->"
                f" {run['loss'][-1]:.6f}, norm {min(run['grad_norm']):.3f} .. "
                f"{max(run['grad_norm']):.3f}, worst difference to fp64 "
                f"{run['worst_difference_to_fp64']:.1e}"
            )


if __name__ == "__main__":
    main()
