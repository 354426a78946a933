#!/usr/bin/env python3
"""Finds performance cliffs of pwc on a CPU: decode steps with growing batches, contexts and threads.

    go build -o bin/pwc ./cmd/pwc
    python3 bench/growth.py bench/llama-3.2-1b.json --pwc bin/pwc
    python3 bench/growth.py config.json --pwc bin/pwc --context 128,1024,8192 --batch 1,2,4,8

Prints tokens per second for each context and batch, and for each number of threads at the first
context. A figure is a cliff if it is below half of the value that its two neighbours give, by
interpolation of the logarithms of size and figure. Neighbours are batches of the same context and
threads, or contexts of the same batch. Exits with 1 if there is a cliff.
"""
import argparse
import json
import math
import os
import subprocess
import sys


def numbers(text):
    return sorted({int(n) for n in text.split(",")})


def rates(a, context, threads):
    """Returns tokens per second by batch."""
    command = [a.pwc, "bench", a.config, "--batch", ",".join(map(str, a.batch)), "--context", str(context), "--dtype", a.dtype, "--json"]
    out = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=dict(os.environ, GOMAXPROCS=str(threads))).stdout
    return {s["batch"]: s["batch"] / s["ms"] * 1e3 for s in json.loads(out)["steps"]}


def cliffs(sizes, figures):
    """Returns the sizes whose figures are below half of the value interpolated from their neighbours."""
    found = []
    for i in range(1, len(sizes) - 1):
        lo, at, hi = (math.log(s) for s in sizes[i - 1:i + 2])
        part = (at - lo) / (hi - lo)
        expected = math.exp((1 - part) * math.log(figures[i - 1]) + part * math.log(figures[i + 1]))
        if figures[i] < expected / 2:
            found.append(sizes[i])
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", help="config.json of a language model; its weights are random")
    p.add_argument("--pwc", default="pwc", help="the pwc program (default: %(default)s)")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--batch", type=numbers, default=numbers("1,2,3,4,6,8,12,16,24,32,64"), help="batch sizes, comma-separated")
    p.add_argument("--context", type=numbers, default=numbers("128,256,512,1024,2048"), help="tokens of a context, comma-separated")
    p.add_argument("--threads", type=numbers, default=sorted({1, len(os.sched_getaffinity(0))}), help="numbers of threads, comma-separated")
    a = p.parse_args()
    most = a.threads[-1]
    runs = [(context, most) for context in a.context] + [(a.context[0], n) for n in a.threads[:-1]]
    table, found = [], []
    print(("{:>8} {:>8}" + " {:>8}" * len(a.batch)).format("context", "threads", *a.batch), flush=True)
    for context, threads in runs:
        by = rates(a, context, threads)
        row = [by[b] for b in a.batch]
        print(("{:>8} {:>8}" + " {:>8.1f}" * len(row)).format(context, threads, *row), flush=True)
        found += [f"batch {b} at a context of {context}, {threads} threads" for b in cliffs(a.batch, row)]
        if threads == most:
            table.append(row)
    for i, b in enumerate(a.batch):
        found += [f"context {c} at batch {b}" for c in cliffs(a.context, [row[i] for row in table])]
    for cliff in found:
        print("cliff: " + cliff)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
