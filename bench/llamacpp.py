#!/usr/bin/env python3
"""Compares pwc and llama.cpp on one CPU: decode steps and prompts of one shape, both in the same run.

    go build -o bin/pwc ./cmd/pwc
    python3 bench/llamacpp.py --pwc bin/pwc                       # SmolLM2-135M's shape, f32 and bf16
    python3 bench/llamacpp.py --pwc bin/pwc --shape 1b --dtype bf16 --rounds 5
    python3 bench/llamacpp.py --pwc bin/pwc --batch 1,2,4,8,16,32,64 --threads 1

llama.cpp comes from npm packages: @node-llama-cpp/linux-x64 has the shared libraries,
node-llama-cpp the headers, as a git bundle. The script puts them into the directory --peer,
with the driver (llamacpp.c, which it compiles) and the models, GGUF files of random weights.
It needs npm, git and a C compiler, and no Python packages.

pwc and llama.cpp run alternately, --rounds times. The script prints the median over rounds of
each one's median step, in tokens per second; above a ratio of 1 pwc is faster. llama.cpp runs
without flash attention, because with several sequences it is faster without; --flash turns it
on. Keys and values of llama.cpp are f16 by default, because it is faster with f16; those of pwc
have the dtype of --dtype.
"""
import argparse
import array
import glob
import json
import os
import platform
import random
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES, HEADERS = "@node-llama-cpp/linux-x64", "node-llama-cpp"
SHAPES = {
    "smol": dict(hidden=576, layers=30, heads=9, kv=3, mlp=1536, vocabulary=49152, theta=10000.0),
    "1b": dict(hidden=2048, layers=16, heads=32, kv=8, mlp=8192, vocabulary=128256, theta=500000.0),
}
HEAD = 64
# By dtype: GGUF's number of the tensor type, that of the file type, bytes of an element (ggml.h, llama.h).
TYPES = {"f32": (0, 0, 4), "f16": (1, 1, 2), "bf16": (30, 32, 2)}
ALIGNMENT = 32


def run(command, **options):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def fetch(peer):
    """Returns the directory of llama.cpp's libraries and the path of the driver. Fetches the libraries if they are missing, and
    compiles the driver if it is missing or older than its source."""
    bins, source, driver = (os.path.join(peer, p) for p in ("package/bins/linux-x64", "src", "driver"))
    if not os.path.isdir(source):
        for package in (LIBRARIES, HEADERS):
            archive = run(["npm", "pack", "--silent", package], cwd=peer).split()[-1]
            run(["tar", "xf", archive], cwd=peer)
        run(["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "package/llama/gitRelease.bundle", "src"], cwd=peer)
    text = os.path.join(HERE, "llamacpp.c")
    if not os.path.exists(driver) or os.path.getmtime(driver) < os.path.getmtime(text):
        libraries = [":" + os.path.basename(sorted(glob.glob(os.path.join(bins, pattern)))[0]) for pattern in ("libllama.*so*", "libggml.*so*", "libggml-base.*so*")]
        run([os.environ.get("CC", "cc"), "-O2", "-I", source + "/include", "-I", source + "/ggml/include", text, "-o", driver, "-L" + bins]
            + ["-l" + name for name in libraries] + ["-Wl,-rpath," + bins, "-Wl,--allow-shlib-undefined"])
    return bins, driver


def padding(n):
    return b"\0" * (-n % ALIGNMENT)


def write_gguf(path, name, dtype):
    """Writes a Llama model with random weights as GGUF, version 3."""
    shape, (number, file_type, size) = SHAPES[name], TYPES[dtype]
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()
    u32, f32, string = (lambda k, v: text(k) + struct.pack("<II", 4, v)), (lambda k, v: text(k) + struct.pack("<If", 6, v)), (lambda k, v: text(k) + struct.pack("<I", 8) + text(v))
    meta = [string("general.architecture", "llama"), string("general.name", name), u32("general.file_type", file_type), u32("general.alignment", ALIGNMENT),
            u32("llama.block_count", shape["layers"]), u32("llama.context_length", 32768), u32("llama.embedding_length", shape["hidden"]),
            u32("llama.feed_forward_length", shape["mlp"]), u32("llama.attention.head_count", shape["heads"]), u32("llama.attention.head_count_kv", shape["kv"]),
            f32("llama.attention.layer_norm_rms_epsilon", 1e-5), u32("llama.rope.dimension_count", HEAD), f32("llama.rope.freq_base", shape["theta"]),
            u32("llama.vocab_size", shape["vocabulary"]), string("tokenizer.ggml.model", "no_vocab")]
    h, q, kv, mlp = shape["hidden"], shape["heads"] * HEAD, shape["kv"] * HEAD, shape["mlp"]
    tensors = [("token_embd.weight", (shape["vocabulary"], h)), ("output_norm.weight", (h,))]
    for i in range(shape["layers"]):
        tensors += [(f"blk.{i}.{n}.weight", dims) for n, dims in (
            ("attn_norm", (h,)), ("ffn_norm", (h,)), ("attn_q", (q, h)), ("attn_k", (kv, h)), ("attn_v", (kv, h)),
            ("attn_output", (h, q)), ("ffn_gate", (mlp, h)), ("ffn_up", (mlp, h)), ("ffn_down", (h, mlp)))]
    layout, offset = b"", 0
    plan = []
    for tensor, dims in tensors:
        kind, bytes_of = (0, 4) if len(dims) == 1 else (number, size)
        total = bytes_of * dims[0] * (dims[1] if len(dims) > 1 else 1)
        layout += text(tensor) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in reversed(dims)) + struct.pack("<IQ", kind, offset)
        plan.append((len(dims), total))
        offset += total + len(padding(total))
    numbers = random.Random(1)
    wide = array.array("f", (numbers.gauss(0, 0.02) for _ in range(1 << 18)))
    if dtype == "f32":
        block = wide.tobytes()
    elif dtype == "bf16":
        raw = wide.tobytes()
        block = b"".join(raw[i + 2:i + 4] for i in range(0, len(raw), 4))
    else:
        block = struct.pack(f"<{len(wide)}e", *wide)
    with open(path + ".part", "wb") as f:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(meta) + layout
        f.write(head + padding(len(head)))
        for rank, total in plan:
            if rank == 1:
                f.write(struct.pack("<f", 1.0) * (total // 4))
            else:
                for at in range(0, total, len(block)):
                    f.write(block[:min(len(block), total - at)])
            f.write(padding(total))
    os.replace(path + ".part", path)


def write_config(path, name):
    shape = SHAPES[name]
    with open(path, "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape["hidden"], "num_hidden_layers": shape["layers"],
                   "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv"], "intermediate_size": shape["mlp"], "vocab_size": shape["vocabulary"],
                   "rms_norm_eps": 1e-5, "rope_theta": shape["theta"], "max_position_embeddings": 32768, "hidden_act": "silu", "tie_word_embeddings": True,
                   "attention_bias": False, "torch_dtype": "bfloat16"}, f)


def pwc_steps(a, config, dtype):
    environment = dict(os.environ, GOMAXPROCS=str(a.threads))
    report = json.loads(run([a.pwc, "bench", config, "--batch", a.batch, "--context", str(a.context), "--prompt", a.prompt, "--dtype", dtype, "--json"], env=environment))
    steps = {f"decode {s['batch']}": s["ms"] / 1e3 for s in report["steps"]}
    return steps | {f"prompt {s['prompt']}": s["ms"] / 1e3 for s in report["prefill"]}


def peer_steps(a, bins, driver, model):
    return json.loads(run([driver, model, str(a.context), a.kv, str(int(a.flash)), str(a.threads), str(a.seconds), a.batch, a.prompt], env=dict(os.environ, GGML_DIR=bins)))


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pwc", default="pwc", help="the pwc program (default: %(default)s)")
    p.add_argument("--peer", default=os.path.join(tempfile.gettempdir(), "pwc-llamacpp"), help="directory for llama.cpp, the driver and models (default: %(default)s)")
    p.add_argument("--shape", default="smol", choices=sorted(SHAPES))
    p.add_argument("--dtype", default="f32,bf16", help="dtypes of weights, comma-separated (default: %(default)s)")
    p.add_argument("--kv", default="f16", choices=["f32", "f16", "bf16"], help="dtype of llama.cpp's keys and values (default: %(default)s)")
    p.add_argument("--flash", action="store_true", help="run llama.cpp with flash attention")
    p.add_argument("--batch", default="1,8,32", help="numbers of sequences that decode together, comma-separated (default: %(default)s)")
    p.add_argument("--prompt", default="512", help="tokens of prompts, comma-separated (default: %(default)s)")
    p.add_argument("--context", type=int, default=512, help="tokens of a sequence (default: %(default)s)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of both programs (default: %(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="how often each program runs (default: %(default)s)")
    p.add_argument("--seconds", type=float, default=1.0, help="how long llama.cpp repeats a step, in seconds (default: %(default)s)")
    p.add_argument("--json", action="store_true", help="print the median of each step and round as JSON, in seconds")
    a = p.parse_args()
    os.makedirs(a.peer, exist_ok=True)
    a.peer = os.path.abspath(a.peer)
    bins, driver = fetch(a.peer)
    config = os.path.join(a.peer, a.shape + ".json")
    write_config(config, a.shape)
    results = {}
    for dtype in a.dtype.split(","):
        model = os.path.join(a.peer, f"{a.shape}-{dtype}.gguf")
        if not os.path.exists(model):
            write_gguf(model, a.shape, dtype)
        ours, theirs = [], []
        for n in range(a.rounds):
            print(f"{dtype}: round {n + 1} of {a.rounds}", file=sys.stderr, flush=True)
            ours.append(pwc_steps(a, config, dtype))
            theirs.append(peer_steps(a, bins, driver, model))
        results[dtype] = {"pwc": ours, "llama.cpp": theirs}
    if a.json:
        print(json.dumps({"processor": processor(), "threads": a.threads, "shape": a.shape, "context": a.context, "seconds": results}))
        return
    print(f"{a.shape}, contexts of {a.context} tokens, {a.threads} threads of {processor()}; tokens/s, medians of {a.rounds} rounds\n")
    row = "{:>6} {:>12} {:>10} {:>10} {:>7}  {}"
    print(row.format("dtype", "step", "pwc", "llama.cpp", "ratio", "ratios of rounds"))
    for dtype, r in results.items():
        for name in r["pwc"][0]:
            tokens = int(name.split()[1])
            mine, other = [t[name] for t in r["pwc"]], [t[name] for t in r["llama.cpp"]]
            m, o = statistics.median(mine), statistics.median(other)
            print(row.format(dtype, name, f"{tokens / m:.1f}", f"{tokens / o:.1f}", f"{o / m:.2f}", " ".join(f"{y / x:.2f}" for x, y in zip(mine, other))))


if __name__ == "__main__":
    main()
