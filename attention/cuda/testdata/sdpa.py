"""Writes sdpa.safetensors: results of PyTorch's attention for ragged batches, for the tests in pytorch_test.go.

    python3 sdpa.py sdpa.safetensors

The file was made with PyTorch 2.11 on an H200. It has no inputs: value() computes them from their indices, and bf16 and
f16 represent them exactly. Results are those of scaled_dot_product_attention in float64 (flex_attention with softcap). The
metadata has the batches, and the largest error of PyTorch's result in bf16.
"""
import json, struct, sys
import numpy as np, torch, torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

dev = "cuda"
# requests are (tokens in the cache, new tokens)
CASES = dict(
    ragged=dict(heads=4, kv=2, dim=64, requests=[(0, 37), (100, 1), (63, 17), (5, 1), (0, 1), (130, 5)]),
    window=dict(heads=3, kv=3, dim=80, window=40, requests=[(0, 50), (90, 1), (39, 3), (200, 2)]),
    softcap=dict(heads=4, kv=2, dim=96, softcap=2.5, scale=0.25, requests=[(0, 20), (150, 1), (30, 9)]),
    encoder=dict(heads=4, kv=1, dim=48, causal=False, requests=[(0, 40), (0, 3), (0, 1)]),
    large=dict(heads=4, kv=1, dim=256, requests=[(0, 5), (80, 2)]),
    odd=dict(heads=6, kv=2, dim=19, window=33, requests=[(0, 9), (70, 1), (3, 30)]),
    chunk=dict(heads=8, kv=2, dim=128, requests=[(300, 33), (1, 1)]),
    decode=dict(heads=8, kv=1, dim=128, requests=[(1999, 1), (700, 1), (63, 1), (64, 1), (0, 1)]),
)


def value(i, seed):
    """Uniform multiples of 1/64 in [-2, 2)."""
    x = (i.astype(np.uint64) * 2654435761 + seed * 40503) & 0xFFFFFFFF
    x ^= x >> 16
    x = (x * 0x45D9F3B) & 0xFFFFFFFF
    x ^= x >> 16
    return ((x & 0xFF).astype(np.int64) - 128).astype(np.float32) / 64


def tensor(seed, first, *shape):
    n = int(np.prod(shape))
    return torch.from_numpy(value(np.arange(first, first + n), seed).reshape(shape)).to(dev)


def attend(c, q, k, v, pos, dt):
    n = k.shape[0]
    q, k, v = (x.to(dt).transpose(0, 1)[None] for x in (q, k, v))
    group = c["heads"] // c["kv"]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale, window, cap, causal = c.get("scale", c["dim"] ** -0.5), c.get("window", 0), c.get("softcap", 0), c.get("causal", True)
    j, p = torch.arange(n, device=dev)[None, :], pos[:, None]
    seen = (j <= p) if causal else torch.ones(len(pos), n, dtype=torch.bool, device=dev)
    if window:
        seen = seen & (j > p - window) & (j < p + window)
    if cap:
        def capped(score, b, h, i, j):
            return torch.where(seen[i, j], cap * torch.tanh(score / cap), float("-inf"))
        o = flex_attention(q, k, v, score_mod=capped, scale=scale)
    else:
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    return o[0].transpose(0, 1).float()


tensors, meta = {}, {}
for name, c in CASES.items():
    h, kv, d = c["heads"], c["kv"], c["dim"]
    rows, out, worst = 0, [], 0.0
    for r, (old, new) in enumerate(c["requests"]):
        q = tensor(1, rows * h * d, new, h, d)
        k = torch.cat((tensor(4, r * 4096 * kv * d, old, kv, d), tensor(2, rows * kv * d, new, kv, d)))
        v = torch.cat((tensor(5, r * 4096 * kv * d, old, kv, d), tensor(3, rows * kv * d, new, kv, d)))
        pos = torch.arange(old, old + new, device=dev)
        o = attend(c, q, k, v, pos, torch.float64)
        worst = max(worst, float((attend(c, q, k, v, pos, torch.bfloat16) - o).abs().max()))
        out.append(o)
        rows += new
    tensors[name] = torch.cat(out).contiguous().cpu().numpy()
    meta[name] = json.dumps(dict(c, error_bf16=worst))
    print(name, tensors[name].shape, worst)

header, blob = {"__metadata__": meta}, b""
for name in sorted(tensors):
    data = tensors[name].astype("<f4").tobytes()
    header[name] = dict(dtype="F32", shape=list(tensors[name].shape), data_offsets=[len(blob), len(blob) + len(data)])
    blob += data
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + blob)
