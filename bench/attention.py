#!/usr/bin/env python3
"""Measures PyTorch's scaled_dot_product_attention at shapes of attention/cuda's benchmarks, in CUDA graphs: causal
prefills and chunks of prefills with 32 heads of 128, and decodes with 32 heads of 128 and of 64 and 8 key-value heads.
Decodes read contiguous caches, one for each layer.

    python3 bench/attention.py
    go test -run '^$' -bench . -benchtime 1x ./attention/cuda
"""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

torch.set_grad_enabled(False)


def microseconds(call, layers, runs=9):
    """Returns the median time of a call. A graph has one call for each layer."""
    for i in range(3):
        call(i % layers)
    torch.cuda.synchronize()
    graph, took = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for i in range(layers):
            call(i)
    for i in range(runs + 3):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        if i >= 3:
            took.append(a.elapsed_time(b) * 1e3 / layers)
    return sorted(took)[runs // 2]


def rand(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def prefill():
    for requests, rows, context in ((1, 2048, 2048), (4, 512, 512), (1, 4096, 4096), (1, 512, 8192), (4, 128, 4096)):
        q, k, v = rand(requests, 32, rows, 128), rand(requests, 32, context, 128), rand(requests, 32, context, 128)
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            if rows == context:
                call = lambda i: F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                mask = causal_lower_right(rows, context)
                call = lambda i: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            try:
                with sdpa_kernel(backend):
                    us = microseconds(call, 4)
            except RuntimeError as e:
                print(f"prefill {requests}x{rows} of {context} {backend.name}: {str(e)[:60]}")
                continue
            print(f"prefill {requests}x{rows} of {context} {backend.name}: {us:.1f} us", flush=True)


def decode():
    for dim in (128, 64):
        for context in (512, 2048, 8192):
            for batch in (1, 8, 32, 64, 128, 256):
                size = batch * context * 8 * dim * 4
                if 2 * size > 6 << 30:
                    continue
                layers = min(16, (6 << 30) // size)
                caches = [(rand(batch, 8, context, dim), rand(batch, 8, context, dim)) for _ in range(layers)]
                q = rand(batch, 32, 1, dim)
                us = microseconds(lambda i: F.scaled_dot_product_attention(q, *caches[i], enable_gqa=True), layers)
                print(f"decode dim={dim} context={context} batch={batch}: {us:.1f} us, {size / us / 1e3:.0f} GB/s", flush=True)
                del caches


prefill()
decode()
