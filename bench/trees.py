"""Compares the graph trees of pwc and PyTorch: the host's time for a step of two small graphs.

    make gpu-test                        # builds out/gpu/graphs-tree.test
    python bench/trees.py --test out/gpu/graphs-tree.test

A step marks its begin and calls foo(x) = (x + 1, x + 2) and fee(b) = 4 * b, each a graph
of one tree. foo also has 0 or 400 static inputs. PyTorch compiles both with
torch.compile(mode="reduce-overhead"). pwc runs BenchmarkPairGPU of package graphs/tree
on the same GPU. Both issue batches of steps that fit into the launch queue, so the host
does not wait for the device. The ratio is pwc's time divided by PyTorch's. "driver" is
the time of the same copy and the same two launches in pwc without a tree.
"""
import argparse
import json
import os
import re
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEPS = 64  # steps of a batch


def torch_pair(statics, batches):
    """Returns the host's time of a step in microseconds: the median over batches."""
    import torch

    class Foo(torch.nn.Module):
        def __init__(self):
            super().__init__()
            # Parameters of a module are static inputs. They are zeros: the results are the same.
            self.ws = torch.nn.ParameterList(torch.zeros(4, device="cuda") for _ in range(statics))

        def forward(self, x):
            for w in self.ws:  # the compiled graph has no inputs that are not read
                x = x + w
            return x + 1, x + 2

    torch._dynamo.reset()
    with torch.no_grad():
        foo = torch.compile(Foo(), mode="reduce-overhead", fullgraph=True)
        fee = torch.compile(lambda y: 4 * y, mode="reduce-overhead", fullgraph=True)
        x = torch.arange(4.0, device="cuda")
        mark = torch.compiler.cudagraph_mark_step_begin

        def step():
            mark()
            a, b = foo(x)
            del a
            c = fee(b)
            del b
            return c

        for _ in range(8):
            c = step()
        assert c.tolist() == [8, 12, 16, 20], c
        del c
        times = []
        for _ in range(batches):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            times.append((time.perf_counter() - start) / STEPS * 1e6)
        torch.cuda.synchronize()
    return sorted(times)[len(times) // 2]


def pwc_pair(test):
    """Returns, by number of static inputs, the microseconds of a step, and those without a tree."""
    command = [os.path.abspath(test), "-test.run", "^$", "-test.bench", "PairGPU", "-test.benchtime", "200x"]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=os.path.join(ROOT, "graphs", "tree"),
                         env=dict(os.environ, PWC_REQUIRE_GPU="1")).stdout
    got = {}
    for line in out.splitlines():
        if at := re.match(r"BenchmarkPairGPU/statics=(\d+)", line):
            metric = {unit: float(value) / 1e3 for value, unit in re.findall(r"([\d.]+) (\S*ns/step)", line)}
            got[int(at[1])] = metric["ns/step"], metric["driver-ns/step"]
    if not got:
        raise SystemExit(f"{test} has no result of BenchmarkPairGPU:\n{out}")
    return got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", default=os.path.join(ROOT, "out", "gpu", "graphs-tree.test"), help="the test program of graphs/tree")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON document")
    a = parser.parse_args()
    rows = []
    for statics, (ours, driver) in sorted(pwc_pair(a.test).items()):
        theirs = torch_pair(statics, a.batches)
        rows.append(dict(statics=statics, pwc_us=ours, driver_us=driver, tree_us=ours - driver, torch_us=theirs, ratio=ours / theirs))
    if a.json:
        print(json.dumps(rows))
        return
    print("statics  pwc us  driver us  tree us  PyTorch us  ratio")
    for r in rows:
        print(f"{r['statics']:7}  {r['pwc_us']:6.2f}  {r['driver_us']:9.2f}  {r['tree_us']:7.2f}  {r['torch_us']:10.1f}  {r['ratio']:5.3f}")


if __name__ == "__main__":
    main()
