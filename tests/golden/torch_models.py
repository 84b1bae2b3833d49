"""The two families in PyTorch, as modules, with the project's initial values and samples.

make_layouts.py trains them in layouts, tests/bench/peers/llama_torch.py times the Llama.  A model
may hold some of its blocks only (a pipeline stage); parameters keep their names.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from make_golden import GOLDEN_RATIO, fnv1a, rope_frequencies, seeded
from torch import nn
from torch.distributed.tensor import DTensor, Partial

# ---- initial values, a whole tensor at once ----


def mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def normal(seed, name, shape, std):
    """README.md's formula, for all elements of a tensor."""
    counters = np.arange(2 * math.prod(shape), dtype=np.uint64) * np.uint64(GOLDEN_RATIO)
    bits = mix(counters + np.uint64(seeded(seed) ^ fnv1a(name.encode()))) >> np.uint64(11)
    u1, u2 = (bits[0::2] + np.uint64(1)) * 2.0**-53, bits[1::2] * 2.0**-53
    values = std * np.sqrt(-2.0 * np.log(u1)) * np.cos(2.0 * np.pi * u2)
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


RESIDUAL = ("o_proj.weight", "down_proj.weight", "c_proj.weight")


def initial(c, seed):
    """By name: matrices are drawn, weights of norms are 1, biases 0."""
    values = {}
    for name, p in model_of(c).named_parameters():
        if p.dim() == 1:
            values[name] = torch.full(p.shape, 0.0 if name.endswith("bias") else 1.0)
        else:
            scale = math.sqrt(2 * num_layers(c)) if name.endswith(RESIDUAL) else 1.0
            values[name] = normal(seed, name, p.shape, c["initializer_range"] / scale)
    return values


def load(model, values):
    """Of a stage too, whose tied head has only the embedding's values."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(values[name] if name in values else values[model.EMBEDDING])


# ---- what both have ----


def num_layers(c):
    return c["n_layer"] if c["model_type"] == "gpt2" else c["num_hidden_layers"]


def kv_heads(c):
    return c["n_head"] if c["model_type"] == "gpt2" else c["num_key_value_heads"]


def model_of(c, blocks=None, first=True, last=True):
    """The whole, or the stage with those blocks."""
    blocks = range(num_layers(c)) if blocks is None else blocks
    return (Gpt2 if c["model_type"] == "gpt2" else Llama)(c, blocks, first, last)


def of_these_queries(x, dim, group, queries):
    """x (B, T, kv_heads dim): those columns that @queries heads here read, @group a key/value head.

    A DTensor is keys or values that every rank of the group computes whole: its gradients are
    summed over the ranks.
    """
    if not isinstance(x, DTensor):
        return x
    first = x.device_mesh.get_local_rank() * queries
    begin, end = first // group * dim, ((first + queries - 1) // group + 1) * dim
    return x.to_local(grad_placements=[Partial()])[..., begin:end]


def attend(q, k, v, dim, group=1, turn=None):
    """q (B, T, dim of each head that is here), k and v likewise; @turn: tables of positions."""
    k, v = (of_these_queries(x, dim, group, q.shape[-1] // dim) for x in (k, v))
    q, k, v = (x.unflatten(-1, (-1, dim)).transpose(1, 2) for x in (q, k, v))
    if turn is not None:
        q, k = (rotate(x, *(table[: x.shape[2]] for table in turn)).type_as(x) for x in (q, k))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=group > 1)
    return mixed.transpose(1, 2).flatten(-2)


# ---- Llama ----


def rope_table(c):
    angles = torch.outer(
        torch.arange(c["max_position_embeddings"], dtype=torch.float64),
        torch.tensor(rope_frequencies(c), dtype=torch.float64),
    )
    return tuple(torch.cat([f(angles)] * 2, dim=-1).float() for f in (torch.cos, torch.sin))


def rotate(x, cos, sin):
    """x (B, heads, T, D): the pairs (x_i, x_{i + D/2}) turned."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


class LlamaAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, heads, kv_heads = (
            c[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
        )
        self.dim, self.group = c["head_dim"], heads // kv_heads
        self.q_proj = nn.Linear(hidden, heads * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(heads * self.dim, hidden, bias=False)

    def forward(self, x, turn):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(attend(q, k, v, self.dim, self.group, turn))


class LlamaMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, ffn = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, ffn, bias=False)
        self.up_proj = nn.Linear(hidden, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.self_attn = LlamaAttention(c)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.mlp = LlamaMlp(c)

    def forward(self, x, turn):
        x = x + self.self_attn(self.input_layernorm(x), turn)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    EMBEDDING = "model.embed_tokens.weight"

    def __init__(self, c, blocks, first, last):
        super().__init__()
        self.tied = c["tie_word_embeddings"]
        self.model = nn.Module()
        if first:
            self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleDict({str(i): LlamaBlock(c) for i in blocks})
        if last:
            self.model.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
            self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.turn = rope_table(c)
        self.tie()

    def embedding(self):
        return getattr(self.model, "embed_tokens", None)

    def positions(self):
        return None

    def norm(self):
        return getattr(self.model, "norm", None)

    def head(self):
        return getattr(self, "lm_head", None)

    def blocks(self):
        return list(self.model.layers.values())

    def tie(self):
        if self.tied and self.embedding() is not None and self.head() is not None:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, x):
        if self.embedding() is not None:
            x = self.model.embed_tokens(x)
        for block in self.blocks():
            x = block(x, self.turn)
        return x if self.head() is None else self.lm_head(self.model.norm(x))


# ---- GPT-2 ----


class Gpt2Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden = c["n_embd"]
        self.dim = hidden // c["n_head"]
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.c_proj = nn.Linear(hidden, hidden)

    def forward(self, x):
        return self.c_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.dim))


class Gpt2Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c["n_embd"], c["n_inner"])
        self.c_proj = nn.Linear(c["n_inner"], c["n_embd"])

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Gpt2Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1 = nn.LayerNorm(c["n_embd"], eps=c["layer_norm_epsilon"])
        self.attn = Gpt2Attention(c)
        self.ln_2 = nn.LayerNorm(c["n_embd"], eps=c["layer_norm_epsilon"])
        self.mlp = Gpt2Mlp(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    EMBEDDING, tied = "transformer.wte.weight", True

    def __init__(self, c, blocks, first, last):
        super().__init__()
        self.transformer = nn.Module()
        if first:
            self.transformer.wte = nn.Embedding(c["vocab_size"], c["n_embd"])
            self.transformer.wpe = nn.Embedding(c["n_positions"], c["n_embd"])
        self.transformer.h = nn.ModuleDict({str(i): Gpt2Block(c) for i in blocks})
        if last:
            self.transformer.ln_f = nn.LayerNorm(c["n_embd"], eps=c["layer_norm_epsilon"])
            self.lm_head = nn.Linear(c["n_embd"], c["vocab_size"], bias=False)
        self.split_tokens = lambda x: x  # sequence parallelism: of (B, T, C) to this rank's
        self.tie()

    def embedding(self):
        return getattr(self.transformer, "wte", None)

    def positions(self):
        return getattr(self.transformer, "wpe", None)

    def norm(self):
        return getattr(self.transformer, "ln_f", None)

    def head(self):
        return getattr(self, "lm_head", None)

    def blocks(self):
        return list(self.transformer.h.values())

    def tie(self):
        if self.embedding() is not None and self.head() is not None:
            self.lm_head.weight = self.transformer.wte.weight

    def forward(self, x):
        if self.embedding() is not None:
            positions = torch.arange(x.shape[1])
            x = self.split_tokens(self.transformer.wte(x) + self.transformer.wpe(positions))
        for block in self.blocks():
            x = block(x)
        return x if self.head() is None else self.lm_head(self.transformer.ln_f(x))
