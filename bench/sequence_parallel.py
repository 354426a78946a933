"""Measures whether sequence parallelism is faster: decoder layers without attention on two GPUs, in two variants.

    go build -o bin/pwc ./cmd/pwc        # with CGO_ENABLED=0 it runs on machines without Go
    python bench/sequence_parallel.py --pwc bin/pwc

"whole" has an all_reduce, then the residual addition and the norm of all rows on each rank, as pwc imports models.
"sequence" has a reduce_scatter, the addition and the norm of the rank's half of the rows, and an all_gather of the
normed rows; each rank keeps its half of the residual. Both have the GEMMs of an 8B model's layer, without the key and
value projections. Inputs and results have one number for each row, so that the time of copies is small. Prints one JSON
object for each number of rows.
"""
import argparse
import json
import os
import subprocess
import tempfile

RANKS, HIDDEN, INTER, HEADS = 2, 4096, 14336, 4096


def module(layers, sequence):
    """Returns the text of a module. It has two times as many rows as its batch symbol N, so that each of two ranks can have N of them."""
    inner, heads = INTER // RANKS, HEADS // RANKS
    rows = "N" if sequence else "2 * N"
    weights, nodes = [], []

    def norm(of, out):
        if not sequence:
            nodes.append(f"%{out} = rms_norm(%{of}, @norm, eps=1e-5) : bf16[2 * N, {HIDDEN}]")
            return
        nodes.append(f"%{out}_part = rms_norm(%{of}, @norm, eps=1e-5) : bf16[N, {HIDDEN}]")
        nodes.append(f"%{out} = all_gather(%{out}_part, group=tp, axis=0) : bf16[2 * N, {HIDDEN}]")

    def add(residual, partial, out):
        op = "reduce_scatter" if sequence else "all_reduce"
        axis = ", axis=0" if sequence else ""
        nodes.append(f"%{out}_sum = {op}(%{partial}, group=tp{axis}) : bf16[{rows}, {HIDDEN}]")
        nodes.append(f"%{out} = add(%{residual}, %{out}_sum) : bf16[{rows}, {HIDDEN}]")

    def weight(name, shape, axis):
        weights.append(f'weight @{name} : bf16[{shape[0]}, {shape[1]}] = shard("{name}", axis={axis}, group=tp)')

    weights.append(f'weight @norm : bf16[{HIDDEN}] = "norm"')
    nodes.append(f"%column = reshape(%x, shape=[{rows}, 1]) : bf16[{rows}, 1]")
    nodes.append(f"%start = mul(%column, @norm) : bf16[{rows}, {HIDDEN}]")
    residual = "start"
    for i in range(layers):
        weight(f"q{i}", (heads, HIDDEN), 0)
        weight(f"o{i}", (HIDDEN, heads), 1)
        weight(f"gate_up{i}", (2 * inner, HIDDEN), 0)
        weight(f"down{i}", (HIDDEN, inner), 1)
        norm(residual, f"n{i}")
        nodes.append(f"%q{i} = linear(%n{i}, @q{i}) : bf16[2 * N, {heads}]")
        nodes.append(f"%o{i} = linear(%q{i}, @o{i}) : bf16[2 * N, {HIDDEN}]")
        add(residual, f"o{i}", f"a{i}")
        norm(f"a{i}", f"m{i}")
        nodes.append(f"%gu{i} = linear(%m{i}, @gate_up{i}) : bf16[2 * N, {2 * inner}]")
        nodes.append(f"%g{i} = slice(%gu{i}, axis=1, start=0, end={inner}) : bf16[2 * N, {inner}]")
        nodes.append(f"%u{i} = slice(%gu{i}, axis=1, start={inner}, end={2 * inner}) : bf16[2 * N, {inner}]")
        nodes.append(f"%s{i} = silu(%g{i}) : bf16[2 * N, {inner}]")
        nodes.append(f"%t{i} = mul(%s{i}, %u{i}) : bf16[2 * N, {inner}]")
        nodes.append(f"%d{i} = linear(%t{i}, @down{i}) : bf16[2 * N, {HIDDEN}]")
        add(f"a{i}", f"d{i}", f"r{i}")
        residual = f"r{i}"
    placed = " shard 0 over tp" if sequence else ""
    body = "\n    ".join(nodes)
    head = "\n  ".join(weights)
    return f"""pwc 1
module "layers" {{
  sym N in [1, 4096] batch
  sym r in [0, {RANKS - 1}] load
  group tp in {RANKS} rank r
  {head}
  func @forward(%x: bf16[{rows}]{placed}) -> (bf16[{rows}]{placed}) {{
    {body}
    %y = max(%{residual}, axes=[1]) : bf16[{rows}]
    return %y
  }}
}}
"""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pwc", default="bin/pwc", help="the pwc program (default: %(default)s)")
    p.add_argument("--target", default="cuda", help="target of pwc bench (default: %(default)s)")
    p.add_argument("--layers", type=int, default=8, help="layers of the module (default: %(default)s)")
    p.add_argument("--rows", default="256,512,1024,2048,4096", help="even numbers of rows, comma-separated (default: %(default)s)")
    a = p.parse_args()
    rows = [int(n) for n in a.rows.split(",")]
    sizes = ",".join(str(n // 2) for n in rows)
    ms = {}
    with tempfile.TemporaryDirectory() as tmp:
        for name in ("whole", "sequence"):
            path = os.path.join(tmp, name + ".ir")
            with open(path, "w") as f:
                f.write(module(a.layers, name == "sequence"))
            command = [a.pwc, "bench", path, "--target", a.target, "--batch", sizes, "--capture-sizes", sizes, "--mode", "piecewise", "--json"]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            for r in json.loads(run.stdout)["runs"]:
                ms[name, 2 * r["rows"]] = min(r["in_a_row_ms"], r["ms"])
    for n in rows:
        whole, sequence = (ms[name, n] / a.layers for name in ("whole", "sequence"))
        print(json.dumps(dict(rows=n, whole_ms_a_layer=round(whole, 4), sequence_ms_a_layer=round(sequence, 4), ratio=round(sequence / whole, 3))), flush=True)


if __name__ == "__main__":
    main()
