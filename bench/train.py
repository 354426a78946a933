#!/usr/bin/env python3
"""Compares training steps of pwc and PyTorch, on one GPU in the same run.

    python3 bench/train.py --pwc bin/pwc --callables out/gpu/graphs-callables.test

Measures three figures:

  notes      the network of PyTorch's notes on CUDA graphs (bench/notes.ir) as one graph of a whole step, in
             f32 and with TF32 for GEMMs
  callables  the same network as graphed callables, with the optimizer outside of the graphs: in pwc two layers
             and the loss are three callables, in PyTorch both layers are one and the loss is not captured
  decoder    a decoder of GPT-2's shape (bench/gpt2.json), 8 x 512 tokens, bf16 with AdamW on f32 weights

PyTorch runs notes and decoder eagerly, as a captured graph, and compiled and captured. Their time is the
median of steps with no other step in flight. The time of callables is the mean of consecutive steps, by the
host's clock.
"""
import argparse
import json
import re
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROWS, IN, HIDDEN, OUT = 640, 4096, 2048, 1024
VOCABULARY, TOKENS, BATCH = 50304, 512, 8


def emit(**fields):
    print(json.dumps(fields), flush=True)
    return fields


# pwc


def pwc(args, name, precision, *command):
    """Runs pwc bench --train. Prints and returns its figures; if it fails, prints the error and returns nothing."""
    done = subprocess.run([args.pwc, "bench", *command, "--train", "--target", "cuda", "--json", "--mode", "full", *(["--profile"] if args.profile else [])],
                          capture_output=True, text=True)
    if done.returncode:
        emit(figure=name, precision=precision, how="pwc", error=done.stderr.strip())
        return {}
    report = json.loads(done.stdout)
    step = report["steps"][0]
    if args.profile:
        for k in report["profile"]["kernels"]:
            print(f"    {k['us']:9.1f} us {k['launches']:4} x {k['name']}")
    return emit(figure=name, precision=precision, how="pwc", ms=step["ms"], in_a_row_ms=step["in_a_row_ms"], host_ms=step["issue_ms"],
                planned_gib=round(report["planned_bytes"] / 2**30, 2), gib=round(step.get("taken_bytes", 0) / 2**30, 2),
                compile_s=report["compile"]["cold_seconds"], capture_s=step["capture_seconds"], profiled_ms=report.get("profile", {}).get("ms"))


def pwc_callables(args):
    """Runs the benchmark of graphs/callables. Returns its figures by precision."""
    done = subprocess.run([Path(args.callables).resolve(), "-test.run", "^$", "-test.bench", "NotesOnGPU", "-test.benchtime", "9x"],
                          capture_output=True, text=True)
    found = {}
    for precision, ms in re.findall(r"^BenchmarkNotesOnGPU/(\w+)\S*\s.*?([\d.]+) ms/step", done.stdout, re.MULTILINE):
        found[precision] = emit(figure="callables", precision=precision, how="pwc", ms=float(ms))
    if not found:
        emit(figure="callables", how="pwc", error=(done.stdout + done.stderr).strip()[-400:])
    return found


# PyTorch


def median(call, runs=30, warmups=5):
    import torch

    for _ in range(warmups):
        call()
    torch.cuda.synchronize()
    took, host = [], []
    for _ in range(runs):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True)
        a.record()
        start = time.perf_counter()
        call()
        host.append((time.perf_counter() - start) * 1e3)
        b.record()
        b.synchronize()
        took.append(a.elapsed_time(b))
    return {"ms": round(sorted(took)[runs // 2], 4), "host_ms": round(sorted(host)[runs // 2], 4)}


def in_a_row(call, runs=50, turns=9):
    """Returns the mean time of a step among consecutive steps, by the host's clock: the median of several turns."""
    import torch

    for _ in range(20):
        call()
    times = []
    for _ in range(turns):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(runs):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / runs * 1e3)
    return {"ms": round(sorted(times)[turns // 2], 4)}


def capture(step):
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(11):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def network():
    from torch import nn

    return nn.Sequential(nn.Linear(IN, HIDDEN), nn.Dropout(0.2), nn.Linear(HIDDEN, OUT), nn.Dropout(0.1)).cuda()


def torch_notes(precision):
    import torch
    import torch.nn.functional as F

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(ROWS, IN, device="cuda"), torch.randn(ROWS, OUT, device="cuda")

    def step(f=model):
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(f(x), y).backward()
        optimizer.step()

    emit(figure="notes", precision=precision, how="eager", **median(step))
    emit(figure="notes", precision=precision, how="graph", **median(capture(step).replay))
    compiled = torch.compile(model)
    return emit(figure="notes", precision=precision, how="compiled graph", **median(capture(lambda: step(compiled)).replay))


def torch_callables(precision):
    import torch
    import torch.nn.functional as F

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    x, y = torch.randn(ROWS, IN, device="cuda"), torch.randn(ROWS, OUT, device="cuda")
    model = torch.cuda.make_graphed_callables(network(), (x,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    return emit(figure="callables", precision=precision, how="graphed callables", **in_a_row(step))


def decoder():
    import torch
    from torch import nn
    import torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self, size=768, heads=12):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
            self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
            self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Decoder(nn.Module):
        def __init__(self, layers=12, size=768):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCABULARY, size), nn.Embedding(TOKENS, size)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(size)

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            logits = self.norm(x) @ self.tokens.weight.t()
            return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    return Decoder().cuda()


def torch_decoder():
    import torch

    model = decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=True, fused=True)
    ids, targets = (torch.randint(0, VOCABULARY, (BATCH, TOKENS), device="cuda") for _ in range(2))

    def step(f=model):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = f(ids, targets)
        loss.backward()
        optimizer.step()

    emit(figure="decoder", precision="bf16", how="eager", **median(step, 15))
    emit(figure="decoder", precision="bf16", how="graph", **median(capture(step).replay, 15))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    compiled = torch.compile(model)
    step(compiled)
    torch.cuda.synchronize()
    seconds = round(time.perf_counter() - start, 1)
    graph = capture(lambda: step(compiled))
    gib = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return emit(figure="decoder", precision="bf16", how="compiled graph", gib=gib, compile_s=seconds, **median(graph.replay, 15))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pwc", default="bin/pwc", help="the pwc program (default: %(default)s)")
    p.add_argument("--callables", help="the test binary of graphs/callables, of make gpu-test; without it callables are not measured")
    p.add_argument("--only", default="notes,callables,decoder", help="the figures to measure, comma-separated (default: %(default)s)")
    p.add_argument("--profile", action="store_true", help="print pwc's kernels")
    p.add_argument("--no-torch", action="store_true", help="measure only pwc")
    args = p.parse_args()
    only, both = args.only.split(","), {}
    if not args.no_torch:
        import torch

        emit(gpu=torch.cuda.get_device_name(), torch=torch.__version__)
    for precision, flags in ("f32", []), ("tf32", ["--matmul-precision", "tf32"]):
        if "notes" in only:
            ours = pwc(args, "notes", precision, str(HERE / "notes.ir"), "--optimizer", "sgd", *flags)
            both["notes", precision] = ours, {} if args.no_torch else torch_notes(precision)
    if "callables" in only and args.callables:
        ours = pwc_callables(args)
        for precision in "f32", "tf32":
            both["callables", precision] = ours.get(precision, {}), {} if args.no_torch else torch_callables(precision)
    if "decoder" in only:
        ours = pwc(args, "decoder", "bf16", str(HERE / "gpt2.json"), "--optimizer", "adamw", "--precision", "bf16", "--batch-size", str(BATCH), "--length", str(TOKENS))
        both["decoder", "bf16"] = ours, {} if args.no_torch else torch_decoder()
    for (figure, precision), (ours, theirs) in both.items():
        if "ms" in ours and "ms" in theirs:
            print(f"{figure:10} {precision:5} pwc {ours['ms']:8.3f} ms, PyTorch {theirs['ms']:8.3f} ms, ratio {ours['ms'] / theirs['ms']:.2f}")


if __name__ == "__main__":
    main()
