"""Measures one decode step of a Llama-shaped model in PyTorch.

The step is that of `pwc bench`: the same shapes (a config.json), bf16, random
weights, one row for each request and contexts of the same length. It writes keys and
values to the cache. The script measures two modes with the same weights and inputs:

  piecewise   torch.compile of each piece (dynamic batch) and one CUDA graph for each
              piece and batch size, from one shared pool; attention runs eagerly
              between the graphs, as in vLLM's PIECEWISE mode
  full        the same compiled pieces and attention in one CUDA graph

A piece is the part of the model between two attentions: the output projection, the
MLP, and the next layer's norm, projections and rotary embedding. Attention is
scaled_dot_product_attention over a static cache. Prints one JSON object per line.
"""
import argparse
import gc
import json
import time

import torch
import torch._inductor.config
import torch.nn.functional as F

DEVICE, DTYPE = "cuda", torch.bfloat16


def emit(**fields):
    print(json.dumps(fields), flush=True)


class Shape:
    """The sizes of a model, from its config.json."""

    def __init__(self, config):
        self.hidden = config["hidden_size"]
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.head = config.get("head_dim") or self.hidden // self.heads
        self.inter = config["intermediate_size"]
        self.vocab = config["vocab_size"]
        self.theta = config.get("rope_theta", 10000.0)
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.q, self.kv = self.heads * self.head, self.kv_heads * self.head


class Weights:
    def __init__(self, s):
        generator = torch.Generator(device=DEVICE).manual_seed(0)

        def normal(*shape):
            return torch.randn(*shape, device=DEVICE, dtype=DTYPE, generator=generator) * 0.02

        def ones():
            return torch.ones(s.hidden, device=DEVICE, dtype=DTYPE)

        self.embed, self.head, self.norm = normal(s.vocab, s.hidden), normal(s.vocab, s.hidden), ones()
        self.layers = [
            dict(norm1=ones(), qkv=normal(s.q + 2 * s.kv, s.hidden), out=normal(s.hidden, s.q),
                 norm2=ones(), gate_up=normal(2 * s.inter, s.hidden), down=normal(s.hidden, s.inter))
            for _ in range(s.layers)
        ]
        inverse = 1.0 / (s.theta ** (torch.arange(0, s.head, 2, device=DEVICE).float() / s.head))
        angles = torch.outer(torch.arange(8192, device=DEVICE).float(), inverse)
        self.cos, self.sin = angles.cos().to(DTYPE), angles.sin().to(DTYPE)


def pieces(s):
    """Returns the three kinds of pieces: before the first attention, between two, after the last."""

    def norm(x, weight):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + s.eps)).to(x.dtype) * weight

    def rotate(x, cos, sin):
        a, b = x.chunk(2, -1)
        cos, sin = cos[:, None, :], sin[:, None, :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def before(x, pos, norm1, qkv, cos, sin):
        q, k, v = (norm(x, norm1) @ qkv.t()).split([s.q, s.kv, s.kv], -1)
        c, n = cos[pos], sin[pos]
        return rotate(q.view(-1, s.heads, s.head), c, n), rotate(k.view(-1, s.kv_heads, s.head), c, n), v.view(-1, s.kv_heads, s.head)

    def after(x, attended, out, norm2, gate_up, down):
        x = x + attended.reshape(-1, s.q) @ out.t()
        gate, up = (norm(x, norm2) @ gate_up.t()).split([s.inter, s.inter], -1)
        return x + (F.silu(gate) * up) @ down.t()

    def first(ids, pos, embed, norm1, qkv, cos, sin):
        x = F.embedding(ids, embed)
        return (x,) + before(x, pos, norm1, qkv, cos, sin)

    def middle(x, attended, pos, out, norm2, gate_up, down, norm1, qkv, cos, sin):
        x = after(x, attended, out, norm2, gate_up, down)
        return (x,) + before(x, pos, norm1, qkv, cos, sin)

    def last(x, attended, out, norm2, gate_up, down, final, head):
        return (norm(after(x, attended, out, norm2, gate_up, down), final) @ head.t()).float()

    return first, middle, last


class View:
    """A tensor's memory without ownership, as vLLM keeps the outputs of captured graphs."""

    def __init__(self, t):
        size = t.element_size()
        self.__cuda_array_interface__ = dict(shape=tuple(t.shape), typestr={2: "<i2", 4: "<f4"}[size], data=(t.data_ptr(), False),
                                             version=2, strides=tuple(n * size for n in t.stride()))


def weak(t):
    return torch.as_tensor(View(t), device=DEVICE).view(t.dtype)


class Model:
    """Decode steps of one shape, up to `most` requests with contexts of `context` tokens."""

    def __init__(self, s, context, most):
        self.s, self.context = s, context
        self.weights = Weights(s)
        self.plain = pieces(s)
        cache = (most, s.kv_heads, context, s.head)
        self.keys = [torch.randn(*cache, device=DEVICE, dtype=DTYPE) for _ in range(s.layers)]
        self.values = [torch.randn(*cache, device=DEVICE, dtype=DTYPE) for _ in range(s.layers)]
        self.ids = torch.randint(0, s.vocab, (most,), device=DEVICE)
        self.pos = torch.full((most,), context - 1, device=DEVICE)
        self.attended = torch.empty(most, s.heads, s.head, device=DEVICE, dtype=DTYPE)
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self.hold = torch.cuda.CUDAGraph()  # keeps the pool alive between groups of graphs
        with torch.cuda.graph(self.hold, pool=self.pool, stream=self.stream):
            torch.zeros(1, device=DEVICE)

    def attend(self, layer, n, q, k, v):
        keys, values = self.keys[layer][:n], self.values[layer][:n]
        keys[:, :, self.context - 1], values[:, :, self.context - 1] = k, v
        out = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, enable_gqa=True)
        return self.attended[:n].copy_(out.squeeze(2))

    def arguments(self, i, n):
        """Returns the arguments of piece i that are not results of the piece before: weights and inputs."""
        w, layers = self.weights, self.weights.layers
        if i == 0:
            return (self.ids[:n], self.pos[:n], w.embed, layers[0]["norm1"], layers[0]["qkv"], w.cos, w.sin)
        at = layers[i - 1]
        mlp = (at["out"], at["norm2"], at["gate_up"], at["down"])
        if i == self.s.layers:
            return mlp + (w.norm, w.head)
        return (self.pos[:n],) + mlp + (layers[i]["norm1"], layers[i]["qkv"], w.cos, w.sin)

    def step(self, functions, n):
        first, middle, last = functions
        x, q, k, v = first(*self.arguments(0, n))
        for i in range(1, self.s.layers):
            x, q, k, v = middle(x, self.attend(i - 1, n, q, k, v), *self.arguments(i, n))
        return last(x, self.attend(self.s.layers - 1, n, q, k, v), *self.arguments(self.s.layers, n))

    def capture(self, function, *arguments):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            out = function(*arguments)
        return graph, out

    def capture_pieces(self, functions, n):
        """Captures each piece; attention writes into one static buffer."""
        first, middle, last = functions
        attended, graphs = self.attended[:n], []
        graph, (x, q, k, v) = self.capture(first, *self.arguments(0, n))
        graphs.append((graph, weak(q), weak(k), weak(v)))
        for i in range(1, self.s.layers):
            graph, (x, q, k, v) = self.capture(middle, x, attended, *self.arguments(i, n))
            graphs.append((graph, weak(q), weak(k), weak(v)))
        final, logits = self.capture(last, x, attended, *self.arguments(self.s.layers, n))
        logits = weak(logits)

        def run():
            for i, (graph, q, k, v) in enumerate(graphs):
                graph.replay()
                self.attend(i, n, q, k, v)
            final.replay()
            return logits

        return run


def measure(run, times=50, warm=5):
    """Returns the median device time of a step with no other step in flight (ms), the host's median time to issue it
    (issue_ms), and the mean time of steps that are issued one after the other without a wait (in_a_row_ms)."""
    for _ in range(warm):
        run()
    torch.cuda.synchronize()
    alone, issued = [], []
    for _ in range(times):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        begin = time.perf_counter()
        run()
        issued.append((time.perf_counter() - begin) * 1e3)
        end.record()
        end.synchronize()
        alone.append(start.elapsed_time(end))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    row = (time.perf_counter() - begin) / times * 1e3

    def median(values):
        return round(sorted(values)[len(values) // 2], 4)

    return dict(ms=median(alone), in_a_row_ms=round(row, 4), issue_ms=median(issued))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="config.json of the shape")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", default="1,8,32,128,256")
    parser.add_argument("--mode", default="piecewise,full")
    parser.add_argument("--capture-sizes", action="store_true", help="time the capture of vLLM's default sizes, too")
    a = parser.parse_args()
    batches, modes = [int(n) for n in a.batch.split(",")], a.mode.split(",")
    torch.set_grad_enabled(False)
    torch._inductor.config.triton.cudagraphs = False
    with open(a.config) as f:
        shape = Shape(json.load(f))
    model = Model(shape, a.context, max(batches + [512] * a.capture_sizes))
    emit(kind="machine", torch=torch.__version__, device=torch.cuda.get_device_name())

    plain = {n: model.step(model.plain, n).clone() for n in batches}
    start = time.perf_counter()
    compiled = [torch.compile(f, dynamic=True, fullgraph=True) for f in model.plain]
    model.step(compiled, max(2, max(batches)))
    torch.cuda.synchronize()
    general = time.perf_counter() - start
    start = time.perf_counter()
    model.step(compiled, 1)
    model.step(compiled, 2)
    torch.cuda.synchronize()
    emit(kind="compile", seconds=round(general, 2), seconds_batch_1=round(time.perf_counter() - start, 2))

    def error(got, n):
        return float((got - plain[n]).norm() / plain[n].norm())

    for n in batches:
        if "piecewise" in modes:
            model.step(compiled, n)
            run = model.capture_pieces(compiled, n)
            got = run()
            torch.cuda.synchronize()
            emit(kind="step", mode="piecewise", batch=n, error=error(got, n), **measure(run))
            del run, got
        if "full" in modes:
            model.step(compiled, n)
            graph, got = model.capture(lambda: model.step(compiled, n))
            emit(kind="step", mode="full", batch=n, **measure(graph.replay))
            del graph, got
    if a.capture_sizes:
        gc.collect()
        torch.cuda.empty_cache()
        sizes = [1, 2, 4] + list(range(8, 256, 8)) + list(range(256, 513, 16))
        for n in (1, 2, 8):
            model.step(compiled, n)
        torch.cuda.synchronize()
        free, start, keep = torch.cuda.mem_get_info()[0], time.perf_counter(), []
        for n in reversed(sizes):
            model.step(compiled, n)
            keep.append(model.capture_pieces(compiled, n))
        torch.cuda.synchronize()
        emit(kind="capture", sizes=len(sizes), graphs=len(sizes) * (shape.layers + 1), seconds=round(time.perf_counter() - start, 2),
             gib=round((free - torch.cuda.mem_get_info()[0]) / 2**30, 3))


if __name__ == "__main__":
    main()
