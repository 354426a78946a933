#!/usr/bin/env python3
"""Measures a training step with PyTorch's make_graphed_callables, on the network of its notes on CUDA graphs: 640 rows,
layers of 4096, 2048 and 1024 features, dropout of 0.2 and 0.1, mean squared error. SGD runs outside of the graphs. The
GEMMs are in f32, then in TF32.

    python3 bench/callables.py
    go test -run '^$' -bench NotesOnGPU -benchtime 5x ./graphs/callables
"""
import time

import torch

ROWS, IN, HIDDEN, OUT = 640, 4096, 2048, 1024


def measure(tf32):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    section1 = torch.nn.Sequential(torch.nn.Linear(IN, HIDDEN), torch.nn.Dropout(0.2)).cuda()
    section2 = torch.nn.Sequential(torch.nn.Linear(HIDDEN, OUT), torch.nn.Dropout(0.1)).cuda()
    loss = torch.nn.MSELoss()
    optimizer = torch.optim.SGD([*section1.parameters(), *section2.parameters()], lr=0.1)
    x = torch.randn(ROWS, IN, device="cuda")
    h = torch.randn(ROWS, HIDDEN, device="cuda", requires_grad=True)
    p = torch.randn(ROWS, OUT, device="cuda", requires_grad=True)
    y = torch.randn(ROWS, OUT, device="cuda")
    section1, section2, loss = torch.cuda.make_graphed_callables((section1, section2, loss), ((x,), (h,), (p, y)))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(section2(section1(x)), y).backward()
        optimizer.step()

    for _ in range(20):
        step()
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(50):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 50 * 1e3)
    print(f"{'TF32' if tf32 else 'f32':5} {sorted(times)[len(times) // 2]:.3f} ms a step", flush=True)


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    measure(False)
    measure(True)
