"""Compares pwc and PyTorch on two GPUs with tensor parallelism: decode steps of one shape, in the same run.

    go build -o bin/pwc ./cmd/pwc        # with CGO_ENABLED=0 it runs on machines without Go
    python bench/tp.py bench/llama-3.1-8b.json --pwc bin/pwc

Both split the model as Megatron does: the QKV and gate/up projections are column-parallel, the
output and down projections row-parallel, with an all-reduce after each of the latter. PyTorch's
steps are compiled pieces in one CUDA graph, measured with NCCL's all-reduce and with the one-shot
all-reduce of symmetric memory. pwc also runs on one GPU. Prints one JSON object for each step.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = 2


def pwc_steps(a, ranks):
    command = [a.pwc, "bench", a.config, "--target", "cuda", "--mode", "piecewise,full", "--batch", a.batch, "--context", str(a.context), "--json"]
    if ranks > 1:
        command += ["--tp", str(ranks)]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        print(json.dumps(dict(what="pwc", gpus=ranks, error=run.stderr[-500:])), flush=True)
        return
    for step in json.loads(run.stdout)["steps"]:
        print(json.dumps(dict(what="pwc", gpus=ranks, batch=step["batch"], mode=step["mode"], ms=step["ms"], in_a_row_ms=step.get("in_a_row_ms"))), flush=True)


class Divided:
    """The model of decode_torch.py on one rank."""

    def __init__(self, d, config, batch, context):
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric

        self.torch, self.dist, self.d, self.context = torch, dist, d, context
        s = self.s = d.Shape(config)
        vocabulary = s.vocab
        s.heads, s.kv_heads, s.inter, s.vocab = s.heads // RANKS, max(1, s.kv_heads // RANKS), s.inter // RANKS, s.vocab // RANKS
        s.q, s.kv = s.heads * s.head, s.kv_heads * s.head
        self.w = d.Weights(s)
        self.w.embed = torch.randn(vocabulary, s.hidden, device="cuda", dtype=d.DTYPE) * 0.02
        self.first, self.out, self.mlp, self.qkv, self.logits = self.pieces()
        cache = (batch, s.kv_heads, context, s.head)
        self.k = [torch.randn(cache, device="cuda", dtype=d.DTYPE) for _ in range(s.layers)]
        self.v = [torch.randn(cache, device="cuda", dtype=d.DTYPE) for _ in range(s.layers)]
        self.ids = torch.randint(0, s.vocab, (batch,), device="cuda")
        self.pos = torch.full((batch,), context - 1, device="cuda")
        self.buffer = symmetric.empty(batch * s.hidden, dtype=d.DTYPE, device="cuda")
        symmetric.rendezvous(self.buffer, dist.group.WORLD.group_name)

    def pieces(self):
        """Returns compiled pieces: those of decode_torch.py, also cut at the all-reduces."""
        torch, s, d = self.torch, self.s, self.d
        import torch.nn.functional as F

        def norm(x, weight):
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + s.eps)).to(x.dtype) * weight

        def rotate(x, cos, sin):
            a, b = x.chunk(2, -1)
            cos, sin = cos[:, None, :], sin[:, None, :]
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        def out(attended, weight):
            return attended.reshape(-1, s.q) @ weight.t()

        def mlp(x, y, scale, gate_up, down):
            x = x + y
            gate, up = (norm(x, scale) @ gate_up.t()).split([s.inter, s.inter], -1)
            return x, (F.silu(gate) * up) @ down.t()

        def qkv(x, y, pos, scale, weight, cos, sin):
            x = x + y
            q, k, v = (norm(x, scale) @ weight.t()).split([s.q, s.kv, s.kv], -1)
            c, n = cos[pos], sin[pos]
            return x, rotate(q.view(-1, s.heads, s.head), c, n), rotate(k.view(-1, s.kv_heads, s.head), c, n), v.view(-1, s.kv_heads, s.head)

        def logits(x, y, scale, head):
            return (norm(x + y, scale) @ head.t()).float()

        return [torch.compile(f, dynamic=True) for f in (d.pieces(s)[0], out, mlp, qkv, logits)]

    def reduce(self, y, how):
        if how == "nccl":
            self.dist.all_reduce(y)
            return y
        own = self.buffer[: y.numel()].view_as(y)
        own.copy_(y)
        return self.torch.ops.symm_mem.one_shot_all_reduce(own, "sum", self.dist.group.WORLD.group_name)

    def step(self, n, how):
        torch, w, last = self.torch, self.w, self.context - 1
        layers = w.layers
        x, q, k, v = self.first(self.ids[:n], self.pos[:n], w.embed, layers[0]["norm1"], layers[0]["qkv"], w.cos, w.sin)
        for i, layer in enumerate(layers):
            self.k[i][:n, :, last], self.v[i][:n, :, last] = k, v
            attended = torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(2), self.k[i][:n], self.v[i][:n], enable_gqa=True).squeeze(2)
            y = self.reduce(self.out(attended, layer["out"]), how)
            x, y = self.mlp(x, y, layer["norm2"], layer["gate_up"], layer["down"])
            y = self.reduce(y, how)
            if i + 1 < len(layers):
                x, q, k, v = self.qkv(x, y, self.pos[:n], layers[i + 1]["norm1"], layers[i + 1]["qkv"], w.cos, w.sin)
        own = self.logits(x, y, w.norm, w.head)
        parts = [torch.empty_like(own) for _ in range(RANKS)]
        self.dist.all_gather(parts, own)
        return torch.cat(parts, -1)


def torch_steps(a):
    """Measures PyTorch on one rank, in a process that torchrun started."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.set_grad_enabled(False)
    spec = importlib.util.spec_from_file_location("decode_torch", os.path.join(HERE, "decode_torch.py"))
    d = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(d)
    batches = [int(n) for n in a.batch.split(",")]
    with open(a.config) as f:
        model = Divided(d, json.load(f), max(batches), a.context)
    for how in ("nccl", "one-shot"):
        for n in batches:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    model.step(n, how)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                model.step(n, how)
            dist.barrier()
            measured = d.measure(graph.replay, times=30)
            if rank == 0:
                print(json.dumps(dict(what="pytorch", gpus=RANKS, batch=n, mode="full", all_reduce=how, **measured)), flush=True)
            del graph
    dist.barrier()
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config", help="config.json of the shape")
    p.add_argument("--pwc", default="pwc", help="the pwc program (default: %(default)s)")
    p.add_argument("--batch", default="1,8,32,128,256", help="numbers of requests, comma-separated (default: %(default)s)")
    p.add_argument("--context", type=int, default=512, help="tokens of a context (default: %(default)s)")
    p.add_argument("--no-torch", action="store_true", help="measure only pwc")
    a = p.parse_args()
    if "RANK" in os.environ:
        torch_steps(a)
        return
    pwc_steps(a, RANKS)
    pwc_steps(a, 1)
    if not a.no_torch:
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)] + sys.argv, check=False)


if __name__ == "__main__":
    main()
