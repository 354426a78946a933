"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const svgSpace = "http://www.w3.org/2000/svg";
const state = { size: report.sizes.length - 1, piece: report.pieces.length ? 0 : -1 };

// Everything from the report becomes text nodes and attributes, never markup.
function element(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) e.setAttribute(key, value);
  e.append(...children.filter((c) => c !== null && c !== undefined).map((c) => (c instanceof Node ? c : String(c))));
  return e;
}

function drawn(name, attributes, ...children) {
  const e = document.createElementNS(svgSpace, name);
  for (const [key, value] of Object.entries(attributes || {})) e.setAttribute(key, value);
  e.append(...children.map((c) => (c instanceof Node ? c : String(c))));
  return e;
}

function bytes(n) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (n >= size) return (n / size).toFixed(1) + " " + unit;
  return n + " B";
}

function amount(n) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (n >= size) return (n / size).toFixed(1) + " " + unit;
  return String(n);
}

function plural(n, noun) { return `${n} ${noun}${n === 1 ? "" : "s"}`; }

function color(i) { return `hsl(${(i * 137.5) % 360} 55% 52%)`; }

function header() {
  const size = element("select", { id: "size", "aria-label": "rows" });
  report.sizes.forEach((n, i) => size.append(element("option", i === state.size ? { value: i, selected: "" } : { value: i }, plural(n, "row"))));
  size.addEventListener("change", () => { state.size = Number(size.value); draw(); });
  return [element("h1", {}, report.model), element("span", {}, report.target), element("span", {}, "mode " + report.mode), element("span", {}, "pwc " + report.version), size];
}

// nodesOf returns the nodes of a function's graph, each distinct piece and op once, the edges between
// successive units, and the node of each unit.
function nodesOf(f) {
  const nodes = [], at = new Map(), edges = new Map(), order = [];
  for (const u of f.units) {
    const key = u.piece >= 0 ? "piece " + u.piece : "call " + u.call;
    if (!at.has(key)) {
      at.set(key, nodes.length);
      nodes.push({ piece: u.piece, call: u.call, loc: u.loc, graph: u.graph, count: 0 });
    }
    const i = at.get(key);
    nodes[i].count++;
    if (order.length) {
      const edge = order[order.length - 1] + " " + i;
      edges.set(edge, (edges.get(edge) || 0) + 1);
    }
    order.push(i);
  }
  return { nodes, edges, order };
}

function graph(f) {
  const { nodes, edges, order } = nodesOf(f);
  const width = 300, height = 44, gap = 30;
  const svg = drawn("svg", { width: width + 120, height: nodes.length * (height + gap) + 8, role: "img", "aria-label": "pieces of @" + f.name, class: "graph" });
  for (const [edge, count] of edges) {
    const [from, to] = edge.split(" ").map(Number);
    const y1 = from * (height + gap) + height + 4, y2 = to * (height + gap) + 4;
    if (to === from + 1) {
      svg.append(drawn("line", { class: "edge", x1: width / 2, y1, x2: width / 2, y2 }));
      svg.append(drawn("text", { class: "small", x: width / 2 + 6, y: (y1 + y2) / 2 + 4 }, "×" + count));
      continue;
    }
    const a = from * (height + gap) + height / 2 + 4, b = to * (height + gap) + height / 2 + 4;
    const bend = width + 30 + Math.min(70, 12 * Math.abs(to - from));
    svg.append(drawn("path", { class: "edge", d: `M ${width + 4} ${a} C ${bend} ${a}, ${bend} ${b}, ${width + 4} ${b}` }));
    svg.append(drawn("text", { class: "small", x: bend - 14, y: (a + b) / 2 + 4 }, "×" + count));
  }
  nodes.forEach((n, i) => {
    const y = i * (height + gap) + 4;
    const name = n.piece >= 0 ? report.pieces[n.piece].hash : n.call;
    const g = drawn("g", { class: "node " + (n.piece >= 0 ? "piece" : "call") + (n.piece >= 0 && n.piece === state.piece ? " chosen" : ""), tabindex: 0, role: "button", "aria-label": name });
    g.append(drawn("rect", { x: 4, y, width, height, rx: n.piece >= 0 ? 4 : 20 }));
    g.append(drawn("rect", { x: 4, y, width: 6, height, class: "block", fill: color(i) }));
    const times = n.count > 1 ? "  ×" + n.count : "";
    g.append(drawn("text", { x: 20, y: y + 18 }, name + times));
    g.append(drawn("text", { class: "small", x: 20, y: y + 35 }, (n.loc || "") + (n.graph === "none" ? "  eager" : "  graph: " + n.graph)));
    if (n.piece >= 0) {
      const choose = () => { state.piece = n.piece; draw(); };
      g.addEventListener("click", choose);
      g.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); choose(); } });
    }
    svg.append(g);
  });
  return { svg, order };
}

function strip(f, order) {
  const w = Math.max(2, Math.min(14, 460 / f.units.length));
  const svg = drawn("svg", { width: w * f.units.length + 2, height: 18, role: "img", "aria-label": "order of a step" });
  f.units.forEach((u, i) => {
    const cell = drawn("rect", { class: "block", x: i * w, y: 0, width: w, height: 16, fill: color(order[i]) });
    cell.append(drawn("title", {}, `unit ${i}: ${u.piece >= 0 ? report.pieces[u.piece].hash : u.call} ${u.loc || ""}`));
    svg.append(cell);
  });
  return svg;
}

function memory(f) {
  const total = f.arena_bytes[state.size], units = Math.max(1, f.units.length);
  const width = 460, height = 180;
  const svg = drawn("svg", { width: width + 2, height: height + 4, role: "img", "aria-label": "arena over a step", class: "memory" });
  svg.append(drawn("line", { class: "axis", x1: 0, y1: height, x2: width, y2: height }));
  (f.memory || []).forEach((s, i) => {
    if (s.where !== "arena" || !total) return;
    const h = (s.bytes[state.size] / total) * height, y = height - (s.offset[state.size] / total) * height - h;
    const x = (s.first / units) * width, w = ((s.last - s.first + 1) / units) * width;
    const r = drawn("rect", { class: "block", x, y, width: Math.max(w, 1), height: Math.max(h, 0.5), fill: color(i) });
    r.append(drawn("title", {}, `${s.name} ${s.type}: ${bytes(s.bytes[state.size])} at ${s.offset[state.size]}, units ${s.first} to ${s.last}`));
    svg.append(r);
  });
  return [element("p", {}, `${bytes(total)} at ${plural(report.sizes[state.size], "row")}: units from left to right, addresses upwards`), svg];
}

function captures(f) {
  if (!f.captures || !f.captures.length) return [element("p", {}, "No size is captured in mode " + report.mode + ".")];
  const cells = f.captures.map((c) => (c.from === c.size ? String(c.size) : `${c.from}–${c.size}`)).join(", ");
  return [element("details", {}, element("summary", {}, plural(f.captures.length, "captured size")), element("p", {}, `Rows that a graph serves, each range padded to its end: ${cells}`))];
}

function table(head, rows) {
  const t = element("table", {}, element("tr", {}, ...head.map((h) => element("th", h.startsWith(">") ? { class: "number" } : {}, h.replace(/^>/, "")))));
  for (const r of rows) t.append(element("tr", {}, ...r.map((c, i) => element("td", head[i].startsWith(">") ? { class: "number" } : {}, c))));
  return t;
}

function passes(shape) {
  return shape.passes.map((p) => {
    if (!p.changed) return element("div", { class: "muted" }, p.name + ": nothing changed");
    const pre = element("pre", {});
    for (const l of p.lines) pre.append(element("span", { class: { "+": "added", "-": "removed", " ": "kept" }[l.mark] }, l.mark + " " + l.text));
    const count = (m) => p.lines.filter((l) => l.mark === m).length;
    return element("details", { class: "pass" }, element("summary", {}, p.name + " ", element("span", { class: "muted" }, `+${count("+")} −${count("-")}`)), pre);
  });
}

function kernels(shape) {
  return shape.kernels.map((k) => {
    const facts = [];
    if (k.guard) facts.push("for " + k.guard);
    if (k.grid) facts.push(`grid ${k.grid}, block ${k.block}`);
    if (k.registers) facts.push(k.registers + " registers");
    if (k.shared_bytes) facts.push(bytes(k.shared_bytes) + " shared");
    if (k.dynamic_shared_bytes) facts.push(k.dynamic_shared_bytes + " B dynamic shared");
    if (k.library) facts.push("library");
    facts.push(bytes(k.bytes[state.size]) + " of operands");
    const body = [element("p", {}, facts.join(" · "))];
    if (k.origin) body.push(element("p", {}, element("code", {}, k.origin)));
    if (k.source) body.push(element("pre", {}, k.source));
    return element("details", { class: "kernel" }, element("summary", {}, `${k.step}${k.variant ? "." + k.variant : ""} ${k.name} `, element("span", { class: "muted" }, facts[0])), ...body);
  });
}

function rate(n, seconds, limit, unit) {
  if (!n || !seconds) return "";
  const text = amount(n / seconds) + unit;
  return limit ? `${text}, ${((100 * n) / seconds / limit).toFixed(0)} %` : text;
}

function measured(piece) {
  const m = report.measured;
  if (!m) return [];
  const names = new Set(piece.shapes.flatMap((s) => s.kernels.map((k) => k.name)));
  const own = m.kernels.filter((t) => names.has(t.name));
  if (!own.length) return [];
  const rows = own.map((t) => [t.name, t.rows, t.calls, ((1e6 * t.seconds) / t.calls).toFixed(1), rate(t.bytes, t.seconds, m.read_bytes_per_second, "B/s"), rate(t.ops, t.seconds, m.peak_operations_per_second, "op/s")]);
  return [element("h3", {}, "Measured on " + m.device), table(["kernel", ">rows", ">launches", ">µs each", ">weights read", ">arithmetic"], rows), ...roofline(m, own)];
}

// roofline draws GEMMs by operations per byte of weights and operations per second, both on
// logarithmic scales, under the read bandwidth and the peak (Williams, Waterman, Patterson, CACM 52(4), 2009).
function roofline(m, own) {
  const points = own.filter((k) => k.ops && k.bytes);
  if (!points.length) return [];
  const width = 460, height = 200, band = m.read_bytes_per_second, peak = m.peak_operations_per_second || 0;
  const xs = points.map((k) => k.ops / k.bytes), ys = points.map((k) => k.ops / k.seconds);
  const x0 = Math.min(...xs) / 2, x1 = Math.max(...xs, peak ? (2 * peak) / band : 0) * 2;
  const y1 = Math.max(...ys, peak, band * Math.max(...xs)) * 1.5, y0 = Math.min(...ys) / 3;
  const x = (v) => (width * Math.log(v / x0)) / Math.log(x1 / x0), y = (v) => height - (height * Math.log(v / y0)) / Math.log(y1 / y0);
  const top = (v) => (peak ? Math.min(peak, band * v) : band * v);
  const svg = drawn("svg", { width: width + 8, height: height + 20, role: "img", "aria-label": "roofline", class: "roofline" });
  const knee = peak ? Math.min(x1, Math.max(x0, peak / band)) : x1;
  svg.append(drawn("polyline", { class: "edge", points: [x0, knee, x1].map((v) => `${x(v)},${y(Math.max(top(v), y0))}`).join(" ") }));
  svg.append(drawn("line", { class: "axis", x1: 0, y1: height, x2: width, y2: height }), drawn("text", { class: "small", x: 4, y: height + 14 }, "operations per byte of weights →, operations per second ↑"));
  points.forEach((k, i) => {
    const dot = drawn("circle", { cx: x(xs[i]), cy: y(ys[i]), r: 4, fill: color(i) });
    dot.append(drawn("title", {}, `${k.name}, ${k.rows} rows: ${amount(ys[i])}op/s`));
    svg.append(dot);
  });
  return [svg];
}

function detail() {
  if (state.piece < 0) return [element("p", {}, "The functions have no pieces.")];
  const p = report.pieces[state.piece];
  const out = [element("h2", {}, "Piece " + p.hash), element("p", {}, `${plural(p.uses, "use")}, ${plural(p.nodes, "node")}, ${amount(p.ops[state.size])} operations at ${plural(report.sizes[state.size], "row")}${p.loc ? ", first at " + p.loc : ""}`)];
  if (p.calls) out.push(element("p", {}, "calls " + p.calls.join(", ")));
  out.push(element("details", { open: "" }, element("summary", {}, "IR"), element("pre", { class: "ir" }, p.text)));
  for (const s of p.shapes) {
    out.push(element("h3", {}, "Compiled for " + s.range + (s.cached ? ", in the cache before" : "")));
    out.push(...kernels(s), ...passes(s), element("details", {}, element("summary", {}, "program"), element("pre", {}, s.program)));
  }
  return out.concat(measured(p));
}

function draw() {
  document.querySelector("header").replaceChildren(...header());
  const map = document.getElementById("map");
  const parts = [];
  report.functions.forEach((f) => {
    const { svg, order } = graph(f);
    parts.push(element("h2", {}, "@" + f.name), element("p", {}, `${plural(f.units.length, "unit")}${f.size_symbol ? ", rows are " + f.size_symbol : ""}`), svg, strip(f, order), ...captures(f), element("h3", {}, "Memory of a step"), ...memory(f));
  });
  map.replaceChildren(...parts);
  document.getElementById("detail").replaceChildren(...detail());
}

draw();
document.body.setAttribute("data-drawn", "");
