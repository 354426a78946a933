"""Compares pwc and PyTorch: decode steps of one shape, both measured in the same run.

    go build -o bin/pwc ./cmd/pwc        # with CGO_ENABLED=0 it runs on machines without Go
    python bench/compare.py bench/llama-3.1-8b.json --pwc bin/pwc

Runs `pwc bench` and decode_torch.py one after the other on the same GPU and prints
their figures side by side. Ratios are pwc's time divided by PyTorch's: below 1, pwc is
faster. "cut" is the time of pwc's pieces divided by that of PyTorch's whole graph: the
cost of cutting a model at attention. "floor" is the time to read the step's bytes once
at the measured bandwidth. "issues" is the host's time to enqueue a step in pieces.
--json prints all figures as JSON instead.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def torch_lines(a):
    command = [sys.executable, os.path.join(HERE, "decode_torch.py"), a.config, "--context", str(a.context), "--batch", a.batch]
    if a.capture_sizes:
        command.append("--capture-sizes")
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def tune(a):
    """Measures the GEMMs of the shape with pwc tune. Returns an environment with the cache that has the records."""
    environment = dict(os.environ, PWC_CACHE="", PWC_CACHE_DIR=tempfile.mkdtemp(prefix="pwc-compare-"))
    subprocess.run([a.pwc, "tune", a.config, "--target", "cuda", "--capture-sizes", a.batch], stdout=subprocess.DEVNULL, check=True, env=environment)
    return environment


def pwc_report(a, environment):
    command = [a.pwc, "bench", a.config, "--target", "cuda", "--mode", "piecewise,full", "--batch", a.batch, "--context", str(a.context), "--json"]
    if a.profile:
        command.append("--profile")
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment).stdout)


def table(head, rows, markdown):
    """Prints a table, as Markdown or with the first column aligned to the left and the others to the right."""
    if markdown:
        for row in [head, ["---"] * len(head)] + rows:
            print("| " + " | ".join(str(c) for c in row) + " |")
        return
    cells = [head] + [[str(c) for c in row] for row in rows]
    width = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        print("  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, width))).rstrip())


def print_comparison(a, report, lines):
    by = {(line["batch"], line["mode"]): line for line in lines if line["kind"] == "step"}
    ours = {(step["batch"], step["mode"]): step for step in report["steps"]}
    machine = next(line for line in lines if line["kind"] == "machine")
    bandwidth = report["read_bytes_per_second"]
    print(f"{os.path.basename(a.config)} in bf16, contexts of {a.context} tokens, {machine['device']}, PyTorch {machine['torch']}, reads {bandwidth / 1e9:.0f} GB/s; ms\n")
    rows = []
    for batch in sorted({b for b, _ in ours}):
        p, f = ours[batch, "piecewise"], ours[batch, "full"]
        tp, tf = by[batch, "piecewise"], by[batch, "full"]
        floor = p["read_bytes"] / bandwidth * 1e3
        rows.append([batch, f"{p['ms']:.3f}", f"{tp['ms']:.3f}", f"{p['ms'] / tp['ms']:.2f}", f"{f['ms']:.3f}", f"{tf['ms']:.3f}", f"{f['ms'] / tf['ms']:.2f}",
                     f"{p['ms'] / tf['ms']:.2f}", f"{floor:.3f}", f"{p['issue_ms']:.3f}", f"{tp['issue_ms']:.3f}"])
    table(["batch", "pwc piecewise", "PyTorch", "ratio", "pwc full", "PyTorch", "ratio", "cut", "floor", "pwc issues", "PyTorch issues"], rows, a.markdown)
    compiled = next(line for line in lines if line["kind"] == "compile")
    print(f"\ncompile: pwc {report['compile']['cold_seconds']:.2f} s cold, {report['compile']['warm_seconds']:.3f} s warm; "
          f"PyTorch {compiled['seconds']} s and {compiled['seconds_batch_1']} s for batch 1")
    for c in report["captures"]:
        print(f"capture: pwc {c['mode']}: {c['sizes']} sizes, {c['graphs']} graphs, {c['seconds']:.2f} s, {c.get('bytes', 0) / 2**30:.2f} GiB")
    for line in lines:
        if line["kind"] == "capture":
            print(f"capture: PyTorch piecewise: {line['sizes']} sizes, {line['graphs']} graphs, {line['seconds']} s, {line['gib']} GiB with the memory between pieces "
                  f"(pwc's: {(report['plan']['peak_arena_bytes'] + report['plan']['result_bytes']) / 2**30:.2f} GiB)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="config.json of the shape")
    parser.add_argument("--pwc", default="pwc", help="the pwc program (default: %(default)s)")
    parser.add_argument("--batch", default="1,8,32,128,256")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--capture-sizes", action="store_true", help="time PyTorch's capture of the default sizes, too")
    parser.add_argument("--tune", action="store_true", help="run pwc tune for the GEMMs first")
    parser.add_argument("--profile", action="store_true", help="measure the time of each of pwc's kernels (printed by --json)")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON document")
    a = parser.parse_args()
    environment = tune(a) if a.tune else dict(os.environ)
    try:
        report = pwc_report(a, environment)
    finally:
        if a.tune:
            shutil.rmtree(environment["PWC_CACHE_DIR"])
    lines = torch_lines(a)
    if a.json:
        print(json.dumps(dict(pwc=report, torch=lines)))
        return
    print_comparison(a, report, lines)


if __name__ == "__main__":
    main()
