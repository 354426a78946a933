"""Makes small torch.export archives with what their models compute, for the tests of frontend/pt2.

Everything is seeded and runs on the CPU. Paths of stack traces are cut to src/<file>. One tar comes out.
"""
import io, json, os, re, sys, tarfile, time, traceback, zipfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

OUT = os.environ.get("OUT", ".")
START = time.time()
LOG = []
FILES = {}
SIZES = (6, 3, 9)
LIMIT = 100  # seconds, after which nothing more is begun


def log(*a):
    LOG.append(" ".join(str(x) for x in a))
    print(*a, flush=True)


def clean(text):
    """cuts every path of a stack trace to its last part"""
    return re.sub(r'File \\"[^"\\]*?([^/"\\]+)\\"', r'File \\"src/\1\\"', text)


def save_archive(ep):
    buf = io.BytesIO()
    torch.export.save(ep, buf)
    src = zipfile.ZipFile(io.BytesIO(buf.getvalue()))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for info in src.infolist():
            data = src.read(info)
            if info.filename.endswith(".json"):
                data = clean(data.decode()).encode()
                assert b"/root" not in data and b"/home" not in data and b"/usr" not in data, info.filename
            root, _, rest = info.filename.partition("/")
            z.writestr(zipfile.ZipInfo("model/" + rest, (1980, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


def save_tensors(tensors):
    from safetensors.torch import save
    return save({k: v.detach().clone().contiguous() for k, v in tensors.items()})


def flat(r):
    out = []
    for x in (r if isinstance(r, (tuple, list)) else [r]):
        out += flat(x) if isinstance(x, (tuple, list)) else [x]
    return out


def inputs(n, kinds, seed=0):
    g = torch.Generator().manual_seed(100 * n + seed)
    out = []
    for k in kinds:
        shape = [n if d == "n" else 2 * n if d == "2n" else 4 * n if d == "4n" else d for d in k[1]]
        if k[0] == "f":
            out.append(torch.randn(shape, generator=g))
        elif k[0] == "b":
            out.append(torch.rand(shape, generator=g) > 0.3)
        elif k[0] == "i":
            out.append(torch.randint(0, k[2], shape, generator=g))
        else:
            out.append(torch.randn(shape, generator=g).to(getattr(torch, k[0])) if k[0] in ("bfloat16", "float16", "float64", "complex64")
                       else torch.randint(0, 100, shape, generator=g).to(getattr(torch, k[0])))
    return out


def emit(name, *args, **options):
    """makes the archives of a model, or none of them where one fails"""
    if time.time() - START > LIMIT:
        log("no time for", name)
        return
    try:
        make(name, *args, **options)
    except Exception:
        log("FAILED", name, traceback.format_exc()[-1500:])
        for key in [k for k in FILES if k.split("/")[0] in (name, name + "-core")]:
            del FILES[key]


def make(name, model, kinds, sizes=SIZES, dims=None, core=True, run=True, strict=False):
    """exports a model, and the same in Core ATen, with results at all sizes"""
    t0 = time.time()
    model = model.eval()
    args = tuple(inputs(sizes[0], kinds))
    if dims is None:
        n = Dim("n", min=3, max=64)
        dims = tuple({i: n for i, d in enumerate(k[1]) if d == "n"} or None for k in kinds)
        if all(d is None for d in dims):
            dims = None
    if name != "strided" and hasattr(model, "fns"):
        prune(model, args, dims, name)
    import copy
    pristine = copy.deepcopy(model)
    ep = torch.export.export(model, args, dynamic_shapes=dims, strict=strict)
    FILES[f"{name}/model.pt2"] = save_archive(ep)
    FILES[f"{name}/graph.txt"] = graph_text(ep)
    if core:
        try:
            dec = ep.run_decompositions()
            FILES[f"{name}-core/model.pt2"] = save_archive(dec)
            FILES[f"{name}-core/graph.txt"] = graph_text(dec)
        except Exception:
            log("CORE FAILED", name, traceback.format_exc()[-600:])
    if run:
        for j, n in enumerate(sizes):
            m = copy.deepcopy(pristine)
            args = inputs(n, kinds, seed=j)
            tensors = {f"in{i}": a for i, a in enumerate(args)}
            with torch.no_grad():
                for step in range(2 if name in ("mutation", "states") else 1):
                    call = [a.clone() for a in args]
                    for i, o in enumerate(flat(m(*call))):
                        tensors[f"out{i}" if step == 0 else f"step1.out{i}"] = torch.as_tensor(o)
                    for i, a in enumerate(call):
                        if not torch.equal(a, args[i]):
                            tensors[f"after{i}"] = a
            FILES[f"{name}/expected{j if j else ''}.safetensors"] = save_tensors(tensors)
    log("ok", name, len(FILES[f"{name}/model.pt2"]), "%.1fs" % (time.time() - t0))


def graph_text(ep):
    text = "\n".join(l.rstrip() for l in str(ep.graph_module.code).splitlines())
    text += "\n# inputs\n" + "\n".join(f"{s.arg.name}: {s.kind.name} target={s.target!r}" for s in ep.graph_signature.input_specs if hasattr(s.arg, "name"))
    text += "\n# outputs\n" + "\n".join(f"{getattr(s.arg, 'name', s.arg)}: {s.kind.name} target={s.target!r}" for s in ep.graph_signature.output_specs)
    return (text + "\n" + str(ep.range_constraints) + "\n").encode()


def prune(model, args, dims, name):
    """drops functions that cannot be exported"""
    good = []
    try:
        torch.export.export(model, args, dynamic_shapes=dims, strict=False)
        return
    except Exception:
        pass
    for f in model.fns:
        one = Fns([f]) if type(model) is Fns else None
        if one is None:
            import copy
            one = copy.copy(model)
            one.fns = [f]
        try:
            torch.export.export(one, args, dynamic_shapes=dims, strict=False)
            good.append(f)
        except Exception as e:
            log("PRUNED", name, f.__code__.co_firstlineno, str(e)[:200].replace("\n", " "))
    model.fns = good


class Fns(nn.Module):
    def __init__(self, fns):
        super().__init__()
        self.fns = fns

    def forward(self, x, y=None, z=None):
        args = [a for a in (x, y, z) if a is not None]
        return tuple(v for f in self.fns for v in flat(f(*args)))


class FnsMods(nn.Module):
    def __init__(self, fns, **mods):
        super().__init__()
        self.fns = fns
        for k, v in mods.items():
            setattr(self, k, v)

    def forward(self, x, y=None, z=None):
        args = [a for a in (x, y, z) if a is not None]
        return tuple(v for f in self.fns for v in flat(f(self, *args)))


def group_pointwise():
    emit("pointwise", Fns([
        lambda x, y: x.abs(), lambda x, y: x.exp(), lambda x, y: (x.abs() + 0.1).log(), lambda x, y: x.abs().sqrt(),
        lambda x, y: (x.abs() + 0.1).rsqrt(), lambda x, y: x.reciprocal(), lambda x, y: x.sin() + x.cos() + x.tanh(),
        lambda x, y: x.erf(), lambda x, y: x.sigmoid(), lambda x, y: x.floor() + x.ceil() + x.round() + x.trunc(),
        lambda x, y: x.sign() + x.neg(), lambda x, y: torch.expm1(x * 1e-3) + torch.log1p(x.abs() * 1e-3),
        lambda x, y: torch.log2(x.abs() + 1) + torch.log10(x.abs() + 1), lambda x, y: x.sinh() + x.cosh() + x.tan(),
        lambda x, y: F.relu(x) + F.silu(x) + F.gelu(x) + F.gelu(x, approximate="tanh"),
        lambda x, y: F.leaky_relu(x, 0.1) + F.elu(x) + F.hardtanh(x) + F.relu6(x), lambda x, y: F.hardswish(x) + F.hardsigmoid(x) + F.mish(x) + F.softplus(x),
        lambda x, y: F.logsigmoid(x) + F.softsign(x) + F.celu(x) + F.selu(x), lambda x, y: F.glu(x, -1),
        lambda x, y: torch.where(x > y, x, y), lambda x, y: torch.where(x > 0, 1.0, x), lambda x, y: torch.maximum(x, y) - torch.minimum(x, y),
        lambda x, y: x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + x.clamp_max(0.2), lambda x, y: torch.clamp(x, y - 1, y + 1),
        lambda x, y: (x > y) & (x < 1) | (y >= 0) ^ (x <= 0), lambda x, y: torch.logical_and(x > 0, y > 0).logical_not(), lambda x, y: (x == y) | (x != 0),
        lambda x, y: torch.fmod(x, 0.7) + torch.remainder(x, 0.7) + torch.remainder(x, y), lambda x, y: x / y + x // (y.abs() + 1), lambda x, y: torch.div(x, 0.3, rounding_mode="trunc"),
        lambda x, y: x ** 2 + x.abs() ** 0.5 + 2.0 ** x, lambda x, y: x.abs() ** y + x ** 3, lambda x, y: torch.addcmul(x, y, y, value=0.5) + torch.addcdiv(x, y, y.abs() + 1, value=2),
        lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: torch.rsub(x, 1.0, alpha=2) + torch.add(x, y, alpha=3) + torch.sub(x, y, alpha=0.5), lambda x, y: 1 - x + 2 / x,
        lambda x, y: x.masked_fill(y > 0, -1.5), lambda x, y: torch.nan_to_num(x / 0.0), lambda x, y: x.isnan() | x.isinf() | torch.isfinite(x),
        lambda x, y: x.square() + x.frac(), lambda x, y: torch.threshold(x, 0.1, -1.0), lambda x, y: torch.atan(x), lambda x, y: torch.heaviside(x, y), lambda x, y: torch.xlogy(x.abs(), y.abs()),
        lambda x, y: torch.asinh(x), lambda x, y: F.prelu(x, torch.tensor([0.2])), lambda x, y: F.dropout(x, 0.5, False) + F.threshold(x, 0.0, 0.0),
        lambda x, y: torch.erfc(x), lambda x, y: torch.special.expit(x), lambda x, y: torch.copysign(x, y), lambda x, y: torch.pow(x.abs(), y), lambda x, y: torch.logit(x.sigmoid()),
    ]), [("f", ["n", 8]), ("f", ["n", 8])])


def group_reduce():
    emit("reduce", Fns([
        lambda x: x.sum(), lambda x: x.sum(1), lambda x: x.sum((0, 2), keepdim=True), lambda x: x.mean(), lambda x: x.mean((1, 2)), lambda x: x.amax(1), lambda x: x.amin((1, 2), True),
        lambda x: x.max(2), lambda x: x.min(1), lambda x: x.max(), lambda x: x.min(), lambda x: x.argmax(1), lambda x: x.argmin(2, keepdim=True), lambda x: x.argmax(),
        lambda x: (x > 1).any(1), lambda x: (x > -1).all(2), lambda x: (x > 1).any(), lambda x: (x > 9).sum(1), lambda x: x[:, :3, 0].prod(1),
        lambda x: x.var(1), lambda x: x.std(2, correction=0), lambda x: torch.var_mean(x, 2), lambda x: x.var((1, 2), unbiased=True), lambda x: x.std(),
        lambda x: x.norm(dim=1), lambda x: torch.linalg.vector_norm(x, 1, dim=(1, 2)), lambda x: F.normalize(x, dim=1), lambda x: x.logsumexp(2),
        lambda x: x.cumsum(1), lambda x: (x > 0).cumsum(0), lambda x: x.softmax(1), lambda x: F.log_softmax(x, 2), lambda x: F.softmin(x, 1),
        lambda x: x.topk(3), lambda x: x.topk(2, dim=1, largest=False), lambda x: x.sort(2), lambda x: x.argsort(1, descending=True), lambda x: x.diff(dim=1),
        lambda x: F.layer_norm(x, (4, 5)), lambda x: F.layer_norm(x, (5,), torch.arange(5.0)), lambda x: F.rms_norm(x, (5,)), lambda x: F.rms_norm(x, (4, 5), torch.ones(4, 5)),
        lambda x: x.cumprod(1), lambda x: F.cosine_similarity(x, x + 1, 2), lambda x: F.mse_loss(x, x * 2), lambda x: torch.count_nonzero(x > 0, dim=1), lambda x: x.nanmean(1),
    ]), [("f", ["n", 4, 5])])


def group_layout():
    emit("layout", Fns([
        lambda x: x.view(x.shape[0], 24), lambda x: x.reshape(-1, 6), lambda x: x.reshape(x.shape[0], 2, 2, -1), lambda x: x.permute(2, 0, 1), lambda x: x.transpose(0, 2), lambda x: x[:, 0].t(), lambda x: x.mT,
        lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1), lambda x: x.repeat(1, 2, 3), lambda x: x.repeat(2, 1, 1, 1), lambda x: x.repeat_interleave(2, 1), lambda x: torch.tile(x, (2,)),
        lambda x: torch.cat([x, x * 2], 1), lambda x: torch.cat([x, x], 0), lambda x: torch.stack([x, -x], -1), lambda x: x.split(2, 1), lambda x: x.split([1, 3], 1), lambda x: x.chunk(3, 2), lambda x: x.tensor_split(3, 1),
        lambda x: x.unbind(1), lambda x: x[:, :1].squeeze(1), lambda x: x[:, :1].squeeze(), lambda x: x[:, 1:4:2], lambda x: x[:, -2:], lambda x: x[..., :-1], lambda x: x[1:], lambda x: x[:-1], lambda x: x[0], lambda x: x[:, -1],
        lambda x: x.narrow(1, 1, 2), lambda x: x.flip(1), lambda x: x.roll(1, 1), lambda x: x.roll((1, -2), (1, 2)), lambda x: F.pad(x, (1, 2)), lambda x: F.pad(x, (1, 1, 2, 0), value=3.0), lambda x: F.pad(x, (-1, 1)),
        lambda x: F.pad(x, (2, 1), mode="reflect"), lambda x: F.pad(x, (2, 1), mode="replicate"), lambda x: F.pad(x, (2, 1), mode="circular"),
        lambda x: x.tril(), lambda x: x.triu(1), lambda x: x.tril(-1), lambda x: x.flatten(1), lambda x: x.flatten(), lambda x: x.unflatten(2, (2, 3)), lambda x: x.movedim(0, 2), lambda x: x.diagonal(0, 1, 2), lambda x: x.unfold(2, 3, 2),
        lambda x: F.pixel_shuffle(x.reshape(-1, 4, 2, 3), 2), lambda x: torch.arange(x.shape[0]), lambda x: torch.arange(1, 9, 2), lambda x: torch.arange(0, 1, 0.25), lambda x: torch.linspace(0, 1, 5),
        lambda x: torch.full((x.shape[0], 2), 3.5), lambda x: torch.ones_like(x) + torch.zeros_like(x) + torch.full_like(x, 2), lambda x: x.new_zeros(3) + x.new_full((3,), 4.0), lambda x: torch.eye(3), lambda x: torch.zeros(2, dtype=torch.int32),
        lambda x: torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij"), lambda x: torch.full((), 2.5), lambda x: torch.hstack([x[:, 0], x[:, 1]]), lambda x: x.expand_as(torch.zeros(2, 1, 4, 6)) if False else x.clone(),
        lambda x: x.broadcast_to((2,) + tuple(x.shape)), lambda x: x.view_as(x).contiguous(), lambda x: torch.ones(4, 4, dtype=torch.bool).tril(), lambda x: x.select(1, 2), lambda x: torch.triu(torch.full((x.shape[0], x.shape[0]), float("-inf")), diagonal=1), lambda x: x.swapaxes(1, 2), lambda x: x.detach().alias() if hasattr(x, "alias") else x.detach(),
        lambda x: torch.select_scatter(x, x[:, 0], 1, 2), lambda x: torch.slice_scatter(x, x[:, :2], 1, 1, 3), lambda x: torch.diag_embed(x), lambda x: torch.atleast_3d(x[:, 0]), lambda x: x.index_fill(1, torch.tensor([0, 2]), -1.0),
    ]), [("f", ["n", 4, 6])])


def group_index():
    emit("index", Fns([
        lambda x, i, b: x[:, torch.tensor([2, 0, 1])], lambda x, i, b: x[torch.arange(2)[:, None], torch.tensor([0, 3])], lambda x, i, b: x[:, torch.tensor([1, 2]), torch.tensor([0, 4])], lambda x, i, b: x[torch.arange(x.shape[0]), i[:, 0]],
        lambda x, i, b: x[torch.tensor([0, 1]), :, torch.tensor([2, 3])], lambda x, i, b: x[:, None, i[0] % 4], lambda x, i, b: x.index_select(1, torch.tensor([3, 1])), lambda x, i, b: x.gather(1, i[:, :, None].expand(-1, -1, 5)), lambda x, i, b: x[:, :, 0].gather(1, i),
        lambda x, i, b: torch.take_along_dim(x, i[:, :, None], 1), lambda x, i, b: F.embedding(i, x[0]), lambda x, i, b: F.embedding(i, torch.arange(12.0).view(4, 3), padding_idx=1), lambda x, i, b: F.one_hot(i, 4),
        lambda x, i, b: torch.zeros(x.shape[0], 4).scatter(1, i[:, :1], 1.0), lambda x, i, b: torch.zeros(x.shape[0], 4).scatter(1, i[:, :1], x[:, :1, 0]), lambda x, i, b: torch.zeros(x.shape[0], 4).scatter_add(1, i, x[:, :3, 0]),
        lambda x, i, b: x.index_put((torch.tensor([0, 1]),), torch.tensor(2.0)), lambda x, i, b: x.index_copy(1, torch.tensor([0, 2]), x[:, 1:3]), lambda x, i, b: x.index_add(1, torch.tensor([0, 2]), x[:, 1:3]),
        lambda x, i, b: x.masked_fill(b[:, :, None], 0.0), lambda x, i, b: torch.where(b, x[:, :, 0], -1.0), lambda x, i, b: x.masked_fill(b[:, :, None], torch.tensor(3.0)),
        lambda x, i, b: x[:, -1:][:, torch.tensor([-1])], lambda x, i, b: torch.masked_fill(x, x > 1, float("-inf")).softmax(-1), lambda x, i, b: x.topk(2)[1].float(), lambda x, i, b: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
        lambda x, i, b: torch.cat([x, x[:, :1]], 1).index_select(1, torch.tensor([4])), lambda x, i, b: x.scatter_reduce(1, i[:, :, None].expand(-1, -1, 5), x[:, :3], "amax"),
    ]), [("f", ["n", 4, 5]), ("i", ["n", 3], 4), ("b", ["n", 4])])


def group_conv():
    torch.manual_seed(1)
    m = dict(c1=nn.Conv1d(4, 6, 3, padding=1), c2=nn.Conv2d(3, 4, 3, stride=2, padding=1), c3=nn.Conv2d(4, 4, 3, groups=4, dilation=2, padding=2), c4=nn.Conv2d(4, 8, 1, groups=2, bias=False), c5=nn.Conv2d(3, 2, (2, 3), padding="same"),
             t2=nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), bn=nn.BatchNorm2d(4), bn1=nn.BatchNorm1d(6), gn=nn.GroupNorm(2, 4), inorm=nn.InstanceNorm2d(4, affine=True), ln=nn.LayerNorm(8), p=nn.Conv2d(3, 5, 4, stride=4))
    bn = m["bn"]
    bn.running_mean.normal_(); bn.running_var.uniform_(0.5, 2); bn.weight.data.normal_()
    fns = [
        lambda s, x: s.c1(x.reshape(-1, 4, 48)), lambda s, x: s.c2(x), lambda s, x: s.c3(s.c2(x)), lambda s, x: s.c4(s.c2(x)), lambda s, x: s.c5(x), lambda s, x: s.t2(s.c2(x)), lambda s, x: s.bn(s.c2(x)), lambda s, x: s.bn1(s.c1(x.reshape(-1, 4, 48))),
        lambda s, x: s.gn(s.c2(x)), lambda s, x: s.inorm(s.c2(x)), lambda s, x: F.max_pool2d(x, 2), lambda s, x: F.max_pool2d(x, 3, 2, 1), lambda s, x: F.avg_pool2d(x, 2), lambda s, x: F.avg_pool2d(x, 3, 2, 1), lambda s, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda s, x: F.adaptive_avg_pool2d(x, 1), lambda s, x: F.adaptive_avg_pool2d(x, (4, 2)), lambda s, x: F.max_pool1d(x.flatten(2), 2), lambda s, x: F.avg_pool1d(x.flatten(2), 4), lambda s, x: F.interpolate(x, scale_factor=2), lambda s, x: F.interpolate(x, size=(5, 3)), lambda s, x: F.interpolate(x, size=(16, 4)),
        lambda s, x: s.p(x).flatten(2).transpose(1, 2), lambda s, x: F.conv2d(x, torch.ones(3, 3, 2, 2), stride=(1, 2), padding=(0, 1)), lambda s, x: F.adaptive_max_pool2d(x, 2), lambda s, x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda s, x: F.unfold(x, 2), lambda s, x: F.pixel_unshuffle(x, 2), lambda s, x: F.adaptive_avg_pool1d(x.flatten(2), 8),
        lambda s, x: F.conv1d(x[0], torch.ones(2, 64, 3).narrow(1, 0, 8).contiguous()), lambda s, x: F.channel_shuffle(x.repeat(1, 2, 1, 1), 2),
    ]
    emit("conv", FnsMods(fns, **m), [("f", ["n", 3, 8, 8])])


def group_rnn():
    torch.manual_seed(2)
    m = dict(gru=nn.GRUCell(5, 6), lstm=nn.LSTMCell(5, 6), rnn=nn.RNNCell(5, 6))
    fns = [lambda s, x, h: s.gru(x, h), lambda s, x, h: s.lstm(x, (h, h * 2)), lambda s, x, h: s.rnn(x, h), lambda s, x, h: s.gru(x)]
    emit("rnn", FnsMods(fns, **m), [("f", ["n", 5]), ("f", ["n", 6])])
    torch.manual_seed(3)
    emit("rnn-seq", FnsMods([lambda s, x: s.gru(x)[0], lambda s, x: s.lstm(x)[0]], gru=nn.GRU(5, 4, batch_first=True), lstm=nn.LSTM(5, 4, batch_first=True)), [("f", ["n", 3, 5])])


def group_sdpa():
    sd = F.scaled_dot_product_attention
    emit("sdpa", Fns([
        lambda q, k: sd(q, k, k * 2), lambda q, k: sd(q, k, k * 2, is_causal=True), lambda q, k: sd(q, k, k, scale=0.3), lambda q, k: sd(q, k, k, attn_mask=(torch.arange(q.shape[2])[:, None] >= torch.arange(k.shape[2])[None])),
        lambda q, k: sd(q, k, k, attn_mask=torch.arange(k.shape[2]).float().mul(-0.1)[None]), lambda q, k: sd(q, k[:, :2], k[:, :2] * 3, enable_gqa=True), lambda q, k: sd(q, k[:, :1], k[:, :1], is_causal=True, enable_gqa=True),
        lambda q, k: sd(q[0], k[0], k[0]), lambda q, k: sd(q, k, k[..., :4]),
    ]), [("f", [2, 4, "n", 8]), ("f", [2, 4, "n", 8])])
    torch.manual_seed(4)
    enc = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    mha = nn.MultiheadAttention(16, 2, batch_first=True)
    emit("encoder", FnsMods([lambda s, x: s.enc(x), lambda s, x: s.mha(x, x, x, need_weights=True)], enc=enc, mha=mha), [("f", ["n", 5, 16])])


def group_einsum():
    emit("einsum", Fns([
        lambda x, y: torch.einsum("nij,njk->nik", x, y), lambda x, y: torch.einsum("nij,nkj->nik", x, y.transpose(1, 2)), lambda x, y: torch.einsum("nij->nji", x), lambda x, y: torch.einsum("nij->ni", x), lambda x, y: torch.einsum("nij,njk->n", x, y), lambda x, y: torch.einsum("ni,nk->nik", x[:, 0, :], y[:, 0, :]),
        lambda x, y: torch.einsum("...ij,...jk->...ik", x, y), lambda x, y: torch.einsum("nij,njk,nkl->nil", x, y, x), lambda x, y: torch.einsum("nii->ni", x[:, :, :3]), lambda x, y: torch.einsum("nij,mij->nm", x, x), lambda x, y: torch.einsum("nij,nij->", x, x),
        lambda x, y: x @ y, lambda x, y: torch.bmm(x, y), lambda x, y: torch.baddbmm(x @ y, x, y, beta=0.5, alpha=2), lambda x, y: torch.addmm(x[:, 0, :3] @ y[0, :3], x[:, 0, :3], y[0, :3]), lambda x, y: x[:, 0] @ y[0], lambda x, y: x @ y[0, :, 0], lambda x, y: torch.mv(x[0], y[0, :, 0]), lambda x, y: torch.dot(x[0, 0], y[0, :, 0]), lambda x, y: torch.outer(x[0, 0], x[0, 1]), lambda x, y: y[0, :, 0] @ y, lambda x, y: torch.mm(x[:, 0], y[0]), lambda x, y: torch.tensordot(x, y[0], 1), lambda x, y: F.linear(x, y[0].t()), lambda x, y: torch.kron(x[0], y[0]), lambda x, y: torch.cdist(x, x), lambda x, y: F.bilinear(x[:, 0], x[:, 1], torch.ones(2, 4, 4)), lambda x, y: torch.linalg.multi_dot([x[0], y[0], x[0]]),
    ]), [("f", ["n", 3, 4]), ("f", ["n", 4, 3])])


class Mutation(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("cache", torch.zeros(8, 4))
        self.register_buffer("temp", torch.ones(4), persistent=False)

    def forward(self, x):
        self.steps.add_(1)
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.cache[2:4].copy_(x[:2])
        self.cache[:, 0] = self.mean[0]
        y = x * 2
        y[:, 1:3] += 1
        y.relu_()
        z = torch.zeros_like(x)
        z[:, 0] = y[:, 1]
        z[1:].fill_(2.0)
        v = z.view(-1)
        v.add_(1)
        return x + self.mean, self.cache.sum(1), self.steps, y, z


class MutatesInput(nn.Module):
    def forward(self, x, y):
        y.mul_(2).add_(x)
        return x + y


class StaticCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 16, 4))

    def forward(self, x, pos):
        self.k.index_copy_(1, pos, x)
        return self.k @ x.transpose(1, 2)


def group_mutation():
    emit("mutation", Mutation(), [("f", ["n", 4])])
    emit("mutates-input", MutatesInput(), [("f", ["n", 4]), ("f", ["n", 4])])
    emit("static-cache", StaticCache(), [("f", [1, 3, 4]), ("i", [3], 3)], dims=None, sizes=(6,))


def group_symbolic():
    a, b = Dim("a", min=2, max=32), Dim("b", min=2, max=16)
    emit("symbolic", Fns([
        lambda x, y, z: torch.cat([x, x], 0), lambda x, y, z: x.reshape(x.shape[0] * 4), lambda x, y, z: x @ y, lambda x, y, z: torch.arange(x.shape[0] * 2 + 1), lambda x, y, z: x * x.shape[0], lambda x, y, z: x.sum() / x.shape[0], lambda x, y, z: torch.full((x.shape[0], y.shape[1]), 1.0),
        lambda x, y, z: (x @ y)[:, : y.shape[1] - 1], lambda x, y, z: x[: x.shape[0] // 2], lambda x, y, z: z.reshape(x.shape[0], 2, 3) if z.shape[0] == 2 * x.shape[0] else z, lambda x, y, z: z[:: 2], lambda x, y, z: (x @ y).transpose(0, 1).reshape(-1), lambda x, y, z: torch.cat([(x @ y).flatten(), x.flatten()]), lambda x, y, z: z[x.shape[0]:] + z[: x.shape[0]], lambda x, y, z: x.new_zeros(x.shape[0], 3).expand(y.shape[1], -1, -1),
        lambda x, y, z: z.chunk(2, 0), lambda x, y, z: torch.linspace(0, 1, 4) * x, lambda x, y, z: x.mean(0) * (y.shape[1] + x.shape[0]),
    ]), [("f", ["n", 4]), ("f", [4, 5]), ("f", ["2n", 3])], dims=({0: a}, {1: b}, {0: 2 * a}))
    k = Dim("k", min=1, max=8)
    emit("divided", Fns([lambda x: x.view(x.shape[0] // 4, 4, 3), lambda x: x.reshape(x.shape[0] // 2, -1), lambda x: x[: x.shape[0] // 4] * 2, lambda x: x.unflatten(0, (-1, 4)).mean(1)]), [("f", ["4n", 3])], sizes=(2, 1, 3), dims=({0: 4 * k},))
    emit("auto", Fns([lambda x, y: x + y, lambda x, y: x[:5]]), [("f", ["n", 4]), ("f", ["n", 4])], dims=({0: Dim.AUTO}, {0: Dim.AUTO}))


def group_dtypes():
    emit("dtypes", Fns([
        lambda x, h, b: x + h, lambda x, h, b: h + b, lambda x, h, b: h * 2.5, lambda x, h, b: b * 0.3, lambda x, h, b: h @ h.t(), lambda x, h, b: b.float().softmax(-1).to(torch.bfloat16), lambda x, h, b: F.layer_norm(h, (4,)), lambda x, h, b: F.gelu(b), lambda x, h, b: h.sum(-1), lambda x, h, b: b.mean(-1), lambda x, h, b: x.half() + x.bfloat16().half(),
        lambda x, h, b: x.int() // 2, lambda x, h, b: (x * 10).long() % 3, lambda x, h, b: (x * 10).to(torch.uint8) if False else (x.abs() * 10).to(torch.uint8), lambda x, h, b: (x * 10).to(torch.int8) + 1, lambda x, h, b: (x * 10).short() / 3, lambda x, h, b: (x > 0) * x, lambda x, h, b: (x > 0).float() + (x > 0), lambda x, h, b: (x > 0).sum(), lambda x, h, b: (x * 10).int() + (x * 10).long(), lambda x, h, b: (x * 10).int() * 1.5, lambda x, h, b: (x * 10).int() & 6 | 1, lambda x, h, b: ~(x * 10).int(), lambda x, h, b: (x * 10).int().sum(1), lambda x, h, b: (x * 10).long().float().mean(), lambda x, h, b: x.type_as(h), lambda x, h, b: torch.tensor(3) + x, lambda x, h, b: torch.tensor([1.5, 2, 3, 4]) * h, lambda x, h, b: (x * 10).int() ** 2, lambda x, h, b: (x * 10).int() > 1.5, lambda x, h, b: torch.where(x > 0, h, b), lambda x, h, b: torch.cat([h, x]), lambda x, h, b: (x * 10).int() << 1, lambda x, h, b: (x * 10).int().clamp(-1, 3), lambda x, h, b: (x * 10).int().max(1), lambda x, h, b: x.to(torch.float64).to(torch.float32) if False else x.double().float() if False else x, lambda x, h, b: (x > 0).to(h.dtype) * -65504.0, lambda x, h, b: torch.finfo(torch.float32).min * (1.0 - (x > 0).float()),
    ]), [("f", ["n", 4]), ("float16", ["n", 4]), ("bfloat16", ["n", 4])])


class Strided(nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(5)
        base = torch.randn(6, 8, generator=g)
        self.w = nn.Parameter(base.t())                       # strides (1, 8)
        self.a = nn.Parameter(base[1:3])                      # the same storage, an offset
        self.tied = self.w
        self.register_buffer("row", base[:, 2])               # stride 8
        self.register_buffer("wide", torch.randn(1, 6, generator=g).expand(3, 6))  # stride 0
        self.register_buffer("ids", torch.arange(12, dtype=torch.int32)[2:8])
        self.register_buffer("narrow_", torch.randn(6, generator=g).to(torch.bfloat16))
        self.register_buffer("scalar", torch.tensor(2.5))
        self.register_buffer("flags", torch.tensor([True, False, True, True, False, True]))
        self.register_buffer("nothing", torch.zeros(0, 6))

    def forward(self, x):
        c = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        return x @ self.w.t() + self.scalar, x @ self.tied.t(), F.linear(x, self.w), x[:, :4] @ self.a[:, :4].t() @ c, x * self.row, x + self.wide.sum(0), x * self.ids, x * self.narrow_, x * self.flags, torch.cat([x, self.nothing])


def group_strided():
    emit("strided", Strided(), [("f", ["n", 6])])


def group_refused():
    for name, fns, kinds in [
        ("refused-float64", [lambda x: x.double().sum(1) + x.double()[:, 0], lambda x: x.double().cos().float()], [("f", ["n", 4])]),
        ("refused-complex", [lambda x: torch.view_as_real(torch.fft.fft(x))], [("f", ["n", 4])]),
        ("refused-unbacked", [lambda x: x[x > 0] * 2, lambda x: torch.nonzero(x)], [("f", ["n", 4])]),
        ("refused-random", [lambda x: x + torch.rand_like(x), lambda x: F.dropout(x, 0.5, True)], [("f", ["n", 4])]),
        ("refused-ops", [lambda x: torch.linalg.inv(x.t() @ x), lambda x: torch.linalg.qr(x)[0], lambda x: x.median(1)[0], lambda x: torch.linalg.inv(x.t() @ x + 1), lambda x: torch.special.bessel_j0(x)], [("f", ["n", 4])]),
        ("refused-input64", [lambda x: x * 2], [("float64", ["n", 4])]),
    ]:
        emit(name, Fns(fns), kinds, core=False, run=False)

    class Cond(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    emit("refused-cond", Cond(), [("f", ["n", 4])], core=False, run=False)

    class Autocast(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = x @ x.t()
            with torch.no_grad():
                z = y.float() + 1
            return z
    emit("autocast", Autocast(), [("f", ["n", 4])], core=False)


def group_custom():
    lib = torch.library.Library("toy", "DEF")
    lib.define("scale(Tensor x, Tensor w, float f, int[] sizes, str mode) -> Tensor")
    lib.define("pair(Tensor x) -> (Tensor, Tensor)")
    lib.impl("scale", lambda x, w, f, sizes, mode: x * w * f, "CompositeExplicitAutograd")
    lib.impl("pair", lambda x: (x + 1, x * 2), "CompositeExplicitAutograd")
    for n in ("scale", "pair"):
        try:
            torch.library.register_fake(f"toy::{n}", {"scale": lambda x, w, f, sizes, mode: torch.empty_like(x), "pair": lambda x: (torch.empty_like(x), torch.empty_like(x))}[n], lib=lib)
        except Exception as e:
            log("fake", n, str(e)[:200])
    emit("custom", Fns([lambda x: torch.ops.toy.scale(x, x[0], 1.5, [1, 2], "same"), lambda x: torch.ops.toy.pair(x)]), [("f", ["n", 4])], core=False)
    FILES["custom/lib.txt"] = b"toy::scale(x, w, f, sizes, mode) = x * w * f; toy::pair(x) = (x + 1, x * 2)\n"


def group_accumulate():
    fns = [
        lambda x, i: torch.zeros(4, 5).index_put((i[:, 0],), x[:, 0], accumulate=True), lambda x, i: x.index_put((i[:, 0] % 3, i[:, 1]), torch.tensor(1.5), accumulate=True), lambda x, i: x[0].index_put((i,), x[:, :3], accumulate=True),
        lambda x, i: x.index_put((None, i[0]), torch.ones(1, 3, 5), accumulate=True) if False else x.index_add(1, i[0], x[:, :3], alpha=2.0), lambda x, i: x.index_add(0, i[:, 0] % 3, x), lambda x, i: torch.zeros(4).index_add(0, i[:, 1], x[:, 0, 0]),
        lambda x, i: torch.zeros(3, 4, dtype=torch.int64).scatter_add(1, i[:3], i[:3] + 1), lambda x, i: x.scatter_add(2, i[:, :, None].expand(-1, -1, 2), x[:, :3, :2]), lambda x, i: torch.ones(x.shape[0], 4).scatter_add(0, i % 3, x[:, :3, 1]),
        lambda x, i: x.cumprod(1), lambda x, i: x.cumprod(0), lambda x, i: i.cumprod(1), lambda x, i: torch.logcumsumexp(x, 1), lambda x, i: torch.cummax(x, 1), lambda x, i: torch.cummin(x, 2)[0],
        lambda x, i: torch.zeros(x.shape[0], 4).scatter(1, i, 2.0, reduce="add") if False else x.scatter(1, i[:, :1, None].expand(-1, -1, 5), 1.0),
    ]
    for how in ("sum", "prod", "mean", "amax", "amin"):
        for include in (True, False):
            fns.append(lambda x, i, how=how, include=include: x[:, :, 0].scatter_reduce(1, i, x[:, :3, 1], how, include_self=include))
            fns.append(lambda x, i, how=how, include=include: x[0].scatter_reduce(0, i[:3].expand(3, 3), x[:3, :3, 2], how, include_self=include))
    for how in ("prod", "mean", "amax", "amin"):
        fns.append(lambda x, i, how=how: x.index_reduce(1, i[0], x[:, :3], how))
    emit("accumulate", Fns(fns), [("f", ["n", 4, 5]), ("i", ["n", 3], 4)])


def group_math():
    two = [("f", ["n", 8]), ("f", ["n", 8])]
    emit("angles", Fns([
        lambda x, y: torch.atan(x * 5), lambda x, y: torch.asin(x.tanh()), lambda x, y: torch.acos(x.tanh()), lambda x, y: torch.atan2(x, y), lambda x, y: torch.atan2(x, torch.zeros_like(x)), lambda x, y: torch.acosh(x.abs() + 1), lambda x, y: torch.atanh(x.tanh() * 0.9), lambda x, y: torch.hypot(x, y), lambda x, y: torch.deg2rad(x) + torch.rad2deg(y), lambda x, y: torch.sinc(x),
    ]), two)
    emit("distances", Fns([
        lambda x, y: torch.cdist(x[:, None], y[:, None]), lambda x, y: torch.cdist(x, y, p=1.0), lambda x, y: F.pairwise_distance(x, y), lambda x, y: F.huber_loss(x, y), lambda x, y: F.smooth_l1_loss(x, y), lambda x, y: F.l1_loss(x, y), lambda x, y: F.bilinear(x, y, torch.arange(24.0).view(3, 2, 4).repeat(1, 4, 2)), lambda x, y: torch.cross(x[:, :3], y[:, :3], dim=1), lambda x, y: torch.trace(x[:3, :3]),
    ]), two)
    emit("logs", Fns([
        lambda x, y: torch.logaddexp(x, y), lambda x, y: torch.exp2(x), lambda x, y: torch.ldexp(x, torch.tensor(3)), lambda x, y: torch.signbit(x), lambda x, y: torch.searchsorted(torch.arange(5.0), x), lambda x, y: F.hardshrink(x) + F.softshrink(x) + F.tanhshrink(x), lambda x, y: torch.isclose(x, y),
        lambda x, y: torch.fmax(x, y) + torch.fmin(x, y), lambda x, y: x.cumsum(1).var(1), lambda x, y: torch.std_mean(x, 1), lambda x, y: torch.aminmax(x, dim=1), lambda x, y: torch.masked_scatter(x, y > 0, x.flip(1)), lambda x, y: torch.logit(x.sigmoid(), eps=1e-3), lambda x, y: x.round(decimals=1), lambda x, y: F.softplus(x, beta=2, threshold=1), lambda x, y: torch.rot90(x), lambda x, y: torch.isin((x * 3).long(), torch.tensor([0, 2])),
    ]), two, core=False)  # isin is decomposed by a power of a size


def group_image():
    emit("volumes", Fns([
        lambda x: F.avg_pool3d(x[:, None], 2), lambda x: F.max_pool3d(x[:, None], (3, 2, 2)), lambda x: F.adaptive_avg_pool3d(x[:, None], (1, 2, 2)), lambda x: F.conv3d(x[:, None], torch.arange(54.0).view(2, 1, 3, 3, 3).sin(), padding=1),
        lambda x: F.conv_transpose3d(x[:, None], torch.arange(54.0).view(1, 2, 3, 3, 3).cos(), stride=2, padding=1), lambda x: F.adaptive_max_pool3d(x[:, None], (1, 2, 2)),
    ]), [("f", ["n", 3, 6, 8])], sizes=(6, 3))
    emit("pads", Fns([
        lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect"), lambda x: F.pad(x[:, None], (1, 1, 2, 2, 1, 0), mode="replicate"), lambda x: F.pad(x[:, None], (3, 1, 2, 0, 1, 2), mode="reflect"), lambda x: F.pad(x[:, None], (1, 2, 0, 1, 2, 0), mode="circular"),
    ]), [("f", ["n", 3, 6, 8])], sizes=(6, 3))
    emit("resample", Fns([
        lambda x: F.local_response_norm(x, 3), lambda x: F.lp_pool2d(x, 2, 2), lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", align_corners=True), lambda x: F.interpolate(x.flatten(2), size=12, mode="linear"),
    ]), [("f", ["n", 3, 6, 8])], sizes=(6, 3))
    emit("bicubic", Fns([
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), lambda x: F.interpolate(x, size=(5, 11), mode="bicubic"), lambda x: F.interpolate(x, size=(9, 4), mode="bicubic", align_corners=True), lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bicubic", recompute_scale_factor=False),
    ]), [("f", ["n", 3, 6, 8])], sizes=(6, 3))
    emit("antialias", Fns([
        lambda x: F.interpolate(x, size=(4, 3), mode="bilinear", antialias=True), lambda x: F.interpolate(x, size=(11, 5), mode="bicubic", antialias=True), lambda x: F.interpolate(x, size=(3, 13), mode="bicubic", antialias=True, align_corners=True), lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
    ]), [("f", ["n", 3, 6, 8])], sizes=(6, 3))
    emit("trilinear", Fns([
        lambda x: F.interpolate(x[:, None], scale_factor=2, mode="trilinear"), lambda x: F.interpolate(x[:, None], size=(2, 9, 5), mode="trilinear", align_corners=True), lambda x: F.interpolate(x, size=(5, 11), mode="nearest-exact"), lambda x: F.interpolate(x, size=(7, 7), mode="area"),
    ]), [("f", ["n", 3, 6, 8])], sizes=(6, 3))
    for name, f in [
        ("bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")), ("bicubic", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")), ("nearest", lambda x: F.interpolate(x, scale_factor=3, mode="nearest")), ("size", lambda x: F.interpolate(x, size=(2 * x.shape[2], 16), mode="bilinear")),
    ]:
        emit("pictures-" + name, Fns([f]), [("f", [2, 3, "n", 8])], sizes=(6, 4))
    emit("fold", Fns([
        lambda x: F.fold(x.reshape(-1, 12, 12), (4, 9), (2, 2), stride=(1, 2)), lambda x: F.fold(x.reshape(-1, 16, 9), (6, 6), (4, 4), stride=2, padding=1), lambda x: F.fold(x.reshape(-1, 4, 36), (8, 8), 2, dilation=2), lambda x: F.fold(F.unfold(x, 3, padding=1, stride=2), (6, 8), 3, padding=1, stride=2),
    ]), [("f", ["n", 3, 6, 8])], sizes=(6, 3))
    emit("indices", Fns([
        lambda x: F.max_pool2d(x, 2, return_indices=True), lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), lambda x: F.max_pool2d(x, (2, 3), ceil_mode=True, dilation=(2, 1), return_indices=True), lambda x: F.max_pool1d(x.flatten(2), 4, return_indices=True), lambda x: F.max_pool3d(x[:, None], (3, 2, 2), return_indices=True),
    ]), [("f", ["n", 3, 6, 8])], sizes=(6, 3))
    emit("unpool", Fns([
        lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), lambda x: F.max_unpool2d(*F.max_pool2d(x, 3, return_indices=True), 3, output_size=(6, 8)),
    ]), [("f", ["n", 3, 6, 8])], sizes=(6, 3))


def group_sampling():
    for mode in ("bilinear", "nearest", "bicubic"):
        fns = []
        for pad in ("zeros", "border", "reflection"):
            for corners in (False, True):
                fns.append(lambda x, g, pad=pad, corners=corners: F.grid_sample(x, g * 0.8, mode=mode, padding_mode=pad, align_corners=corners))
        emit(f"sample-{mode}", Fns(fns), [("f", ["n", 3, 6, 8]), ("f", ["n", 4, 5, 2])], sizes=(6, 3))
    emit("sample-3d", Fns([
        lambda x, g: F.grid_sample(x[:, None], torch.cat([g, g[..., :1] * 0.5], -1)[:, None] * 0.7, align_corners=False), lambda x, g: F.grid_sample(x[:, None], torch.cat([g, g[..., :1] * 0.5], -1)[:, None], mode="nearest", padding_mode="border", align_corners=True), lambda x, g: F.grid_sample(x[:, None], torch.cat([g, g[..., :1] * 0.5], -1)[:, None], padding_mode="reflection", align_corners=False),
    ]), [("f", ["n", 3, 6, 8]), ("f", ["n", 4, 5, 2])], sizes=(6, 3))
    emit("affine", Fns([
        lambda x, g: F.affine_grid(g[:, 0, :3].reshape(-1, 2, 3), (g.shape[0], 3, 4, 5), align_corners=False), lambda x, g: F.grid_sample(x, F.affine_grid(g[:, 0, :3].reshape(-1, 2, 3), (g.shape[0], 3, 4, 5), align_corners=True), align_corners=True),
    ]), [("f", ["n", 3, 6, 8]), ("f", ["n", 4, 5, 2])], sizes=(6, 3))


def group_storage():
    emit("as-strided", Fns([
        lambda x: torch.as_strided(x[:3], (2, 3), (4, 1), 1) + 0, lambda x: torch.as_strided(x.contiguous(), (x.shape[0], 3), (6, 2), 1) * 2, lambda x: (x.t() + 1).as_strided((6, 2), (1, 6), 3), lambda x: (x * 2).as_strided((x.shape[0] - 1, 2, 6), (6, 6, 1)), lambda x: (x * 3).as_strided((x.shape[0], 6, 2), (6, 1, 0)),
    ]), [("f", ["n", 6])])

    class Writes(nn.Module):
        def forward(self, x):
            a = torch.zeros(4, 6)
            a.as_strided((2, 3), (12, 2), 1).copy_(x[:2, :3])
            b = torch.zeros(24)
            b.as_strided((4,), (7,)).add_(1)
            return a, b.view(4, 6) + x[:1], torch.as_strided_scatter(a * 2, x[:2, :2], (2, 2), (6, 1), 2)
    emit("strided-writes", Writes(), [("f", ["n", 6])])


def group_bags():
    table = torch.randn(7, 4, generator=torch.Generator().manual_seed(3))
    at = lambda i: i.flatten()
    for mode in ("sum", "mean", "max"):
        emit(f"bag-{mode}", Fns([
            lambda i, w: F.embedding_bag(i, table, mode=mode), lambda i, w: F.embedding_bag(at(i), table, torch.tensor([0, 2, 2, 5]), mode=mode), lambda i, w: F.embedding_bag(at(i)[:9], table, torch.tensor([0, 4, 9]), mode=mode, include_last_offset=True), lambda i, w: F.embedding_bag(i, table, mode=mode, padding_idx=2),
        ]), [("i", ["n", 3], 7), ("f", ["n", 3])])
    emit("bag-weights", Fns([lambda i, w: F.embedding_bag(i, table, mode="sum", per_sample_weights=w), lambda i, w: F.embedding_bag(at(i), table, torch.tensor([0, 5]), mode="sum", per_sample_weights=at(w), padding_idx=1)]), [("i", ["n", 3], 7), ("f", ["n", 3])])
    emit("pdist", Fns([lambda x: F.pdist(x[:3]), lambda x: F.pdist(x[:3], p=1.0), lambda x: torch.pdist(x[:3, :2], p=float("inf"))]), [("f", ["n", 5])])
    emit("refused-pairs", Fns([lambda x: F.pdist(x)]), [("f", ["n", 5])], core=False, run=False)


def group_losses():
    two = [("f", ["n", 5]), ("f", ["n", 5])]
    emit("losses", Fns([
        lambda x, y: F.cross_entropy(x, y.argmax(1)), lambda x, y: F.cross_entropy(x, y.argmax(1), reduction="none", label_smoothing=0.1), lambda x, y: F.nll_loss(x.log_softmax(1), y.argmax(1), reduction="sum"), lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), lambda x, y: F.cross_entropy(x, y.softmax(1)),
    ]), two)


def group_nan():
    nan = float("nan")
    holes = lambda x: torch.where(x > 0.8, nan, x)
    one = [("f", ["n", 8])]
    emit("nan-sort", Fns([
        lambda x: holes(x).sort(dim=1, stable=True), lambda x: holes(x).sort(dim=1, descending=True, stable=True), lambda x: holes(x).argsort(dim=1, stable=True), lambda x: holes(x).topk(3)[0], lambda x: holes(x).topk(3, largest=False)[0], lambda x: torch.where(x > 0.8, -0.0, 0.0).sort(dim=1, stable=True), lambda x: torch.where(x > 0.5, float("inf"), torch.where(x < -0.5, -float("inf"), x)).sort(dim=1, stable=True), lambda x: (x * 3).round().sort(dim=1, stable=True), lambda x: (x * 3).round().sort(dim=1, descending=True, stable=True),
    ]), one)
    emit("nan-reduce", Fns([
        lambda x: holes(x).max(1), lambda x: holes(x).min(1), lambda x: holes(x).argmin(1), lambda x: holes(x).argmax(1), lambda x: holes(x).amax(0), lambda x: holes(x).nanmean(1), lambda x: holes(x).nansum(1), lambda x: holes(x).sum(1), lambda x: holes(x).softmax(1), lambda x: holes(x).logsumexp(1), lambda x: holes(x).isnan().any(1),
    ]), one)
    emit("nan-scan", Fns([lambda x: holes(x).cumsum(1), lambda x: holes(x).cumprod(1), lambda x: torch.cummax(holes(x), 1), lambda x: torch.cummin(holes(x), 1)]), one)
    emit("nan-point", Fns([
        lambda x: holes(x).clamp(-0.5, 0.5), lambda x: holes(x).clamp(min=0.1), lambda x: torch.maximum(holes(x), x.flip(1)), lambda x: torch.minimum(x.flip(1), holes(x)), lambda x: torch.fmax(holes(x), x.flip(1)), lambda x: holes(x).relu(), lambda x: F.leaky_relu(holes(x)), lambda x: holes(x).sign(), lambda x: F.elu(holes(x)), lambda x: F.gelu(holes(x)), lambda x: holes(x) == holes(x), lambda x: holes(x) > 0, lambda x: torch.nan_to_num(holes(x), nan=2.0), lambda x: F.hardtanh(holes(x)), lambda x: F.relu6(holes(x)), lambda x: F.threshold(holes(x), 0.1, -1.0), lambda x: F.hardshrink(holes(x)), lambda x: F.softshrink(holes(x)), lambda x: F.hardsigmoid(holes(x)), lambda x: holes(x).bool(), lambda x: F.softplus(holes(x)), lambda x: F.logsigmoid(holes(x)), lambda x: torch.remainder(holes(x), 0.7), lambda x: torch.atan2(holes(x), x.flip(1)), lambda x: torch.where(holes(x) > 0, 1.0, holes(x)),
    ]), one)


class StridedWrites(nn.Module):
    def forward(self, x):
        a = torch.zeros_like(x)
        a[:, ::2] = x[:, :3]
        a[1::2] += 1
        b = x.clone()
        b[:, 1::3].mul_(2)
        b.t()[0] = 5
        c = torch.zeros(6, 6)
        c.diagonal().fill_(1)
        c.diagonal(1).copy_(x[0, :5])
        c[::2, 1::2] = 7
        d = x.clone()
        d.view(-1, 2, 3)[:, 1, ::2] = -1
        d.unsqueeze(1)[:, 0, -1:] += 3
        e = x.clone()
        e[:2, torch.tensor([1, 3])] = 9
        e.masked_fill_(x > 1, 0)
        e[:, -2:].clamp_(max=0.5)
        p, q = x.clone().chunk(2, 1)
        p.add_(1)
        q.copy_(p * 2)
        return a, b, c, d, e, p, q


def group_writes():
    emit("writes", StridedWrites(), [("f", ["n", 6])], sizes=(6, 4, 9), dims=({0: Dim("n", min=4, max=64)},))
    s = F.scaled_dot_product_attention
    emit("masked-rows", Fns([
        lambda q, m: s(q, q, q, attn_mask=(m[:, None, None] & torch.tensor([False, True, True, True, True])[:, None])), lambda q, m: torch.where(m[:, None, None], q @ q.mT, float("-inf")).softmax(-1), lambda q, m: s(q, q, q, attn_mask=torch.where(m, 0.0, float("-inf"))[:, None, None]),
    ]), [("f", ["n", 2, 5, 4]), ("b", ["n", 5])])


class States(nn.Module):
    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(9)
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("mean", torch.randn(4, generator=g))
        self.register_buffer("halves", torch.randn(2, 4, generator=g).half())
        self.register_buffer("flags", torch.tensor([True, False, True, False]))
        self.register_buffer("wide", torch.randn(4, 2, generator=g).t())
        self.register_buffer("zero", torch.zeros(4))

    def forward(self, x):
        self.steps.add_(2)
        self.mean.lerp_(x.mean(0), 0.25)
        self.halves.mul_(0.5)
        self.flags.logical_not_()
        self.wide.add_(self.mean[:4])
        self.zero.add_(1)
        return x * self.mean + self.steps, self.halves.float() + self.wide, x * self.flags + self.zero


def group_states():
    emit("states", States(), [("f", ["n", 4])])


class Nested(nn.Module):
    def forward(self, x, pair, table):
        return x + pair[0] * table["scale"], torch.cat([pair[1], x]) + table["bias"]


def group_nested():
    n = Dim("n", min=3, max=64)
    make = lambda n, seed=0: (lambda a: (a[0], (a[1], a[2]), {"scale": a[3], "bias": a[4]}))(inputs(n, [("f", ["n", 4]), ("f", ["n", 4]), ("f", ["n", 4]), ("f", ["n", 1]), ("f", [4])], seed))
    model = Nested()
    for name, dims in (("nested", ({0: n}, ({0: n}, {0: n}), {"scale": {0: n}, "bias": None})), ("nested-auto", ({0: Dim.AUTO}, ({0: Dim.AUTO}, {0: Dim.AUTO}), {"scale": {0: Dim.AUTO}, "bias": None}))):
        ep = torch.export.export(model, make(6), dynamic_shapes=dims, strict=False)
        FILES[f"{name}/model.pt2"] = save_archive(ep)
        FILES[f"{name}/graph.txt"] = graph_text(ep)
        for j, k in enumerate(SIZES):
            args = make(k, j)
            leaves = [args[0], *args[1], *args[2].values()]
            tensors = {f"in{i}": a for i, a in enumerate(leaves)}
            tensors.update({f"out{i}": o for i, o in enumerate(model(*args))})
            FILES[f"{name}/expected{j if j else ''}.safetensors"] = save_tensors(tensors)
        log("ok", name)


class Regions(nn.Module):
    def forward(self, x):
        y = x * 2
        with torch.no_grad():
            z = y + 1
            w = z.relu()
        with torch.enable_grad():
            v = w @ x.t()
        return v.sum(1) + z[:, 0], w


class Cast(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(11)
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.l(x) @ x.t()
            s = y.softmax(-1)
        return s.float() + 1


def group_regions():
    emit("regions", Regions(), [("f", ["n", 4])])
    emit("cast", Cast(), [("f", ["n", 4])])


def group_causal():
    s, t = F.scaled_dot_product_attention, 12
    tri = lambda: torch.ones(t, t, dtype=torch.bool).tril()
    neg = lambda: torch.full((t, t), float("-inf")).triu(1)
    low = lambda: torch.full((t, t), torch.finfo(torch.float32).min).triu(1)
    at = lambda: torch.arange(t)
    emit("causal", Fns([
        lambda q, k: s(q, k, k * 2, is_causal=True), lambda q, k: s(q, k, k, attn_mask=tri()), lambda q, k: s(q, k, k, attn_mask=neg()), lambda q, k: s(q, k, k, attn_mask=at()[:, None] >= at()[None]), lambda q, k: s(q, k[:, :2], k[:, :2], is_causal=True, enable_gqa=True, scale=0.25),
        lambda q, k: s(q, k, k, attn_mask=(at()[None] <= at()[:, None])[None, None].expand(q.shape[0], 1, t, t)), lambda q, k: (q @ k.mT / 8 ** 0.5).masked_fill(~tri(), float("-inf")).softmax(-1) @ k, lambda q, k: ((q @ k.mT) * 0.35 + low()).softmax(-1) @ k, lambda q, k: s(q, k, k, attn_mask=tri() & (at()[:, None] - at()[None] < 4)), lambda q, k: s(q, k, k, attn_mask=low()),
    ]), [("f", ["n", 4, t, 8]), ("f", ["n", 4, t, 8])])


def group_hf():
    import transformers as T

    class Logits(nn.Module):
        def __init__(self, m):
            super().__init__()
            self.m = m

        def forward(self, ids):
            return self.m(input_ids=ids, use_cache=False).logits

    class Hidden(nn.Module):
        def __init__(self, m, key):
            super().__init__()
            self.m, self.key = m, key

        def forward(self, x):
            return self.m(**{self.key: x}).last_hidden_state

    seq = Dim("s", min=2, max=64)
    ids = [("i", [1, "n"], 64)]
    jobs = [
        ("hf-gpt2", lambda: Logits(T.GPT2LMHeadModel(T.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=64, attn_implementation="sdpa"))), ids, ({1: seq},)),
        ("hf-vit", lambda: Hidden(T.ViTModel(T.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4), add_pooling_layer=False), "pixel_values"), [("f", ["n", 3, 8, 8])], None),
        ("hf-t5-encoder", lambda: Hidden(T.T5EncoderModel(T.T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4)), "input_ids"), ids, ({1: seq},)),
    ]
    for name, build, kinds, dims in jobs:
        torch.manual_seed(6)
        emit(name, build(), kinds, dims=dims, core=False)


def group_hf_static():
    import transformers as T

    class Logits(nn.Module):
        def __init__(self, m):
            super().__init__()
            self.m = m

        def forward(self, ids):
            return self.m(input_ids=ids, use_cache=False).logits

    common = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    gpt2 = dict(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    for name, build in [
        ("hf-static-llama", lambda: T.LlamaForCausalLM(T.LlamaConfig(**common, attn_implementation="sdpa"))),
        ("hf-static-llama-eager", lambda: T.LlamaForCausalLM(T.LlamaConfig(**common, attn_implementation="eager"))),
        ("hf-static-gpt2", lambda: T.GPT2LMHeadModel(T.GPT2Config(**gpt2, attn_implementation="sdpa"))),
        ("hf-static-mistral", lambda: T.MistralForCausalLM(T.MistralConfig(**common, sliding_window=4, attn_implementation="sdpa"))),
    ]:
        torch.manual_seed(6)
        emit(name, Logits(build()), [("i", ["n", 12], 64)], sizes=(4, 3), core=False)


def group_models():
    import transformers as T

    class Field(nn.Module):
        def __init__(self, m, key, field):
            super().__init__()
            self.m, self.key, self.field = m, key, field

        def forward(self, x):
            return getattr(self.m(**{self.key: x}), self.field)

    image = lambda size: [("f", ["n", 3, size, size])]
    ids = [("i", ["n", 10], 64)]
    lm = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64, attn_implementation="sdpa", use_cache=False)
    bert = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64)
    for name, build, kinds, key, field in [
        ("hf-resnet", lambda: T.ResNetModel(T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")), image(16), "pixel_values", "last_hidden_state"),
        ("hf-convnext", lambda: T.ConvNextModel(T.ConvNextConfig(num_stages=2, hidden_sizes=[8, 12], depths=[1, 1], patch_size=2)), image(8), "pixel_values", "last_hidden_state"),
        ("hf-swin", lambda: T.SwinModel(T.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[2, 1], num_heads=[1, 2], window_size=2)), image(16), "pixel_values", "last_hidden_state"),
        ("hf-dinov2", lambda: T.Dinov2Model(T.Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, mlp_ratio=2, image_size=8, patch_size=2)), image(12), "pixel_values", "last_hidden_state"),
        ("hf-segformer", lambda: T.SegformerForSemanticSegmentation(T.SegformerConfig(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 12], patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=8)), image(16), "pixel_values", "logits"),
        ("hf-whisper-encoder", lambda: T.models.whisper.modeling_whisper.WhisperEncoder(T.WhisperConfig(d_model=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=24, num_mel_bins=8, max_source_positions=8)), [("f", ["n", 8, 16])], "input_features", "last_hidden_state"),
        ("hf-wav2vec2", lambda: T.Wav2Vec2Model(T.Wav2Vec2Config(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, conv_dim=(8, 8), conv_kernel=(4, 3), conv_stride=(3, 2), num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2)), [("f", ["n", 60])], "input_values", "last_hidden_state"),
        ("hf-deberta", lambda: T.DebertaV2Model(T.DebertaV2Config(**bert, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)), ids, "input_ids", "last_hidden_state"),
        ("hf-modernbert", lambda: T.ModernBertModel(T.ModernBertConfig(**bert, pad_token_id=0, local_attention=4, global_attn_every_n_layers=2)), ids, "input_ids", "last_hidden_state"),
        ("hf-gemma3", lambda: T.Gemma3ForCausalLM(T.Gemma3TextConfig(**lm, sliding_window=4, layer_types=["sliding_attention", "full_attention"])), ids, "input_ids", "logits"),
        ("hf-mamba", lambda: T.MambaForCausalLM(T.MambaConfig(vocab_size=64, hidden_size=8, state_size=4, num_hidden_layers=1, use_cache=False)), [("i", ["n", 5], 64)], "input_ids", "logits"),
    ]:
        try:
            torch.manual_seed(7)
            model = build()
        except Exception:
            log("FAILED", name, traceback.format_exc()[-800:])
            continue
        emit(name, Field(model, key, field), kinds, sizes=(4, 3), core=False)


GROUPS = {
    "ops": [group_strided, group_mutation, group_symbolic, group_sdpa, group_rnn, group_conv, group_index, group_dtypes, group_einsum, group_custom, group_refused, group_layout, group_reduce, group_pointwise, group_hf],
    "more": [group_nested, group_regions, group_causal, group_accumulate, group_hf_static],
    "values": [group_states, group_writes, group_nan, group_math],
    "images": [group_image, group_sampling],
    "models": [group_models],
    "positions": [group_storage, group_bags, group_losses],
}
SET = sys.argv[1] if len(sys.argv) > 1 else "ops"


def main():
    torch.set_num_threads(4)
    log("torch", torch.__version__)
    for g in GROUPS[SET]:
        try:
            g()
        except Exception:
            log("FAILED", g.__name__, traceback.format_exc()[-1500:])
        write()
    log("%.1f s" % (time.time() - START))
    write()


def write():
    FILES["log.txt"] = ("\n".join(LOG) + "\n").encode()
    with tarfile.open(os.path.join(OUT, f"{SET}.tar.gz"), "w:gz") as t:
        for name, data in sorted(FILES.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))


main()
