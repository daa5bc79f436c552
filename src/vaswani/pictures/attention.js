"use strict";
// Draws what the page's data says. No library, no network.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const svgNs = "http://www.w3.org/2000/svg";
const ROW = 26, CHARACTER = 8.6, GAP = 220, WINDOW = data.window;

const decoded = new Map();
function weights(unit, kind) {
  // Weights as bytes: 255 is 1. Layer, head, query, key.
  const name = `${unit} ${kind}`;
  if (!decoded.has(name)) {
    decoded.set(name, Uint8Array.from(atob(data.units[unit].weights[kind]), (letter) => letter.charCodeAt(0)));
  }
  return decoded.get(name);
}

function chosen() {
  const unit = byId("words").checked ? "words" : "pieces";
  const kind = byId("kind").value;
  const [layers, heads] = data.sizes[kind];
  const [queries, keys] = data.units[unit].labels[kind];
  const boxes = [...document.querySelectorAll("#heads input")];
  return {
    unit, kind, layers, heads, queries, keys,
    layer: Number(byId("layer").value),
    shown: boxes.filter((box) => box.checked).map((box) => Number(box.value)),
    view: byId("view").value,
    firstQuery: Number(byId("queries").value || 0),
    firstKey: Number(byId("keys").value || 0),
    at(head, query, key) {
      const place = ((this.layer * heads + head) * queries.length + query) * keys.length + key;
      return weights(unit, kind)[place] / 255;
    },
  };
}

function element(name, attributes, text) {
  const made = document.createElementNS(svgNs, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function colour(head) {
  return `var(--${data.series[head % data.series.length]})`;
}

function shorten(token, most = 24) {
  const letters = [...token];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : token;
}

function part(tokens, first) {
  return tokens.map((token, index) => [token, index]).slice(first, first + WINDOW);
}

function widest(tokens) {
  return Math.max(...tokens.map(([token]) => [...shorten(token)].length)) * CHARACTER + 16;
}

function drawLines(state) {
  const left = part(state.queries, state.firstQuery), right = part(state.keys, state.firstKey);
  const leftWidth = widest(left), width = leftWidth + GAP + widest(right);
  const height = Math.max(left.length, right.length) * ROW + 10;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group" });
  const lines = element("g", {});
  svg.append(lines);
  const y = (index) => index * ROW + ROW / 2 + 5;
  left.forEach(([, query], row) => right.forEach(([, key], column) => state.shown.forEach((head, number) => {
    const weight = state.at(head, query, key);
    if (weight < 0.02) return;
    const shift = (number - (state.shown.length - 1) / 2) * Math.min(3, 14 / state.shown.length);
    lines.append(element("line", {
      x1: leftWidth, x2: leftWidth + GAP, y1: y(row) + shift, y2: y(column) + shift,
      style: `stroke:${colour(head)}`, "stroke-opacity": weight.toFixed(3), "stroke-width": 2, "data-query": query, "data-key": key,
    }));
  })));
  const only = (name, index) => {
    for (const line of lines.children) line.style.display = name === null || line.dataset[name] === String(index) ? "" : "none";
  };
  for (const [tokens, name, x, anchor] of [[left, "query", leftWidth - 6, "end"], [right, "key", leftWidth + GAP + 6, "start"]]) {
    tokens.forEach(([token, index], row) => {
      const text = element("text", { x, y: y(row) + 5, "text-anchor": anchor, tabindex: 0, role: "button", "data-token": name }, shorten(token));
      text.append(element("title", {}, describe(state, name, index)));
      text.setAttribute("aria-label", describe(state, name, index));
      for (const event of ["mouseenter", "focus"]) text.addEventListener(event, () => only(name, index));
      for (const event of ["mouseleave", "blur"]) text.addEventListener(event, () => only(null));
      svg.append(text);
    });
  }
  return svg;
}

function mean(state, query, key) {
  if (!state.shown.length) return 0;
  return state.shown.reduce((sum, head) => sum + state.at(head, query, key), 0) / state.shown.length;
}

function describe(state, side, index) {
  // What a token attends to most, or is attended by.
  const isQuery = side === "query", others = isQuery ? state.keys : state.queries;
  const ranked = others.map((token, other) => [isQuery ? mean(state, index, other) : mean(state, other, index), token]);
  const best = ranked.sort((one, other) => other[0] - one[0]).slice(0, 3).filter(([weight]) => weight >= 0.005);
  const said = best.map(([weight, token]) => `${token} ${(100 * weight).toFixed(0)}%`).join(", ");
  return `${(isQuery ? state.queries : state.keys)[index]}: ${isQuery ? "looks at" : "is looked at by"} ${said || "nothing"}`;
}

function drawMap(state) {
  const rows = part(state.queries, state.firstQuery), columns = part(state.keys, state.firstKey);
  const table = document.createElement("table");
  table.className = "map";
  const head = table.createTHead().insertRow();
  head.append(document.createElement("td"));
  for (const [token] of columns) head.append(cell("th", shorten(token, 16), "col"));
  const body = table.createTBody();
  for (const [token, query] of rows) {
    const row = body.insertRow();
    row.append(cell("th", shorten(token, 16), "row"));
    for (const [other, key] of columns) {
      const weight = mean(state, query, key), square = row.insertCell();
      square.style.setProperty("--weight", `${(100 * weight).toFixed(1)}%`);
      square.title = `${token} → ${other}: ${(100 * weight).toFixed(1)}%`;
      square.append(Object.assign(document.createElement("span"), { className: "hidden", textContent: `${(100 * weight).toFixed(0)}%` }));
    }
  }
  return table;
}

function cell(name, text, scope) {
  const made = document.createElement(name);
  made.scope = scope;
  made.dir = "auto";
  const inner = document.createElement("span");
  inner.textContent = text;
  made.append(inner);
  return made;
}

function options(select, values, texts, keep) {
  const before = select.value;
  select.replaceChildren(...values.map((value, index) => new Option(texts[index], value)));
  if (keep && values.map(String).includes(before)) select.value = before;
}

function windows(id, tokens) {
  const firsts = [];
  for (let first = 0; first < tokens.length; first += WINDOW) firsts.push(first);
  options(byId(id), firsts, firsts.map((first) => `${first + 1} to ${Math.min(first + WINDOW, tokens.length)} of ${tokens.length}`), true);
  byId(id).parentElement.hidden = firsts.length < 2;
}

function draw() {
  const state = chosen();
  byId("drawing").replaceChildren(state.view === "lines" ? drawLines(state) : drawMap(state));
  const names = state.shown.map((head) => `${head + 1}`).join(", ");
  byId("said").textContent = `${data.kinds[state.kind]}, layer ${state.layer + 1}, ` +
    (state.shown.length ? `head ${names}` : "no head chosen") + (state.view === "map" && state.shown.length > 1 ? " (mean)" : "");
}

function chooseKind(keepHeads) {
  const kind = byId("kind").value, [layers, heads] = data.sizes[kind];
  options(byId("layer"), [...Array(layers).keys()], [...Array(layers).keys()].map((layer) => layer + 1), true);
  if (!keepHeads) {
    byId("heads").replaceChildren(...[...Array(heads).keys()].map((head) => {
      const label = document.createElement("label");
      const box = Object.assign(document.createElement("input"), { type: "checkbox", value: head, checked: head === 0 });
      box.addEventListener("change", draw);
      label.style.setProperty("--colour", colour(head));
      label.append(box, ` ${head + 1}`);
      return label;
    }));
  }
  const unit = byId("words").checked ? "words" : "pieces";
  const [queries, keys] = data.units[unit].labels[kind];
  windows("queries", queries);
  windows("keys", keys);
  draw();
}

function chooseHead(kind, layer, head) {
  byId("kind").value = kind;
  chooseKind(false);
  byId("layer").value = layer;
  for (const box of document.querySelectorAll("#heads input")) box.checked = Number(box.value) === head;
  draw();
  byId("controls").scrollIntoView({ block: "start" });
  byId("kind").focus();
}

byId("kind").addEventListener("change", () => chooseKind(false));
byId("words").addEventListener("change", () => chooseKind(true));
for (const id of ["layer", "view", "queries", "keys"]) byId(id).addEventListener("change", draw);
byId("all").addEventListener("click", () => {
  const boxes = [...document.querySelectorAll("#heads input")], every = boxes.every((box) => box.checked);
  for (const box of boxes) box.checked = !every;
  draw();
});
for (const button of document.querySelectorAll("button[data-kind]")) {
  button.addEventListener("click", () => chooseHead(button.dataset.kind, Number(button.dataset.layer), Number(button.dataset.head)));
}
chooseKind(false);
