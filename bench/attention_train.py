#!/usr/bin/env python3
"""Measures PyTorch's scaled_dot_product_attention in training, at the shape of compile/cuda's benchmark: 8 causal
sequences of 512 tokens, 12 heads of 64, bf16; q, k and v are views of one projection. Prints the times of forward and
backward in CUDA graphs, for each of PyTorch's backends. The backward is the time of both less that of the forward.

    python3 bench/attention_train.py
    go test -run '^$' -bench TrainingAttention -benchtime 1x ./compile/cuda
"""
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BATCH, TOKENS, HEADS, SIZE = 8, 512, 12, 64


def microseconds(call, count=20, runs=9):
    """Returns the median time of a call. A graph has many calls."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph, took = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    for i in range(runs + 3):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        if i >= 3:
            took.append(a.elapsed_time(b) * 1e3 / count)
    return sorted(took)[runs // 2]


def operands():
    width = HEADS * SIZE
    projection = torch.randn(BATCH, TOKENS, 3 * width, device="cuda", dtype=torch.bfloat16)
    return [x.view(BATCH, TOKENS, HEADS, SIZE).transpose(1, 2) for x in projection.split(width, 2)]


def measure(name, backend):
    q, k, v = operands()
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    cotangent = torch.randn(BATCH, TOKENS, HEADS, SIZE, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

    def both():
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        torch.autograd.grad(out, leaves, cotangent)

    with sdpa_kernel(backend) if backend else nullcontext():
        try:
            forward = microseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
            all_of_it = microseconds(both)
        except RuntimeError as e:
            print(f"{name:10} {e}")
            return
    print(f"{name:10} forward {forward:6.2f} us, backward {all_of_it - forward:6.2f} us", flush=True)


print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
for name, backend in (("default", None), ("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION), ("efficient", SDPBackend.EFFICIENT_ATTENTION)):
    measure(name, backend)
