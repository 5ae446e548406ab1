"use strict";
(() => {
const content = JSON.parse(document.getElementById("content").textContent);
const NS = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, told apart by people who do not see all colours alike.
// Lighter on dark paper: report.css has both.
const COLOURS = [0, 1, 2, 3, 4, 5, 6, 7].map((k) => `var(--c${k})`);
const colour = (k) => k === undefined || k === null ? COLOURS[0] : k < 0 ? COLOURS[7] : COLOURS[k % COLOURS.length];
const tip = document.getElementById("tip");

function make(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) if (value !== undefined && value !== null) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
function draw(name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes || {})) if (value !== undefined && value !== null) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
/* a probability below a thousandth is small, whatever its digits; the tooltip has them */
const worded = (value, column) => column.name === "p" && typeof value === "number" && value < 0.001 ? "< 0.001" : said(value, column.digits);
function said(value, digits) {
  if (value === null || value === undefined) return "–";
  if (value === true) return "yes";
  if (value === false) return "no";
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(digits || 4)));
}

/* tooltips: whatever has data-tip explains itself, by pointer and by keyboard */
function show(target, x, y) {
  tip.textContent = target.getAttribute("data-tip");
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - box.width - 4)) + "px";
  tip.style.top = (y + box.height + 22 > innerHeight ? Math.max(4, y - box.height - 10) : y + 16) + "px";
}
document.addEventListener("pointermove", (event) => {
  const target = event.target.closest && event.target.closest("[data-tip]");
  if (target) show(target, event.clientX, event.clientY); else tip.hidden = true;
});
document.addEventListener("focusin", (event) => {
  const target = event.target.closest("[data-tip]");
  if (!target) { tip.hidden = true; return; }
  const box = target.getBoundingClientRect();
  show(target, box.left, box.bottom);
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

for (const card of content.cards) {
  const node = make("div", { class: "card", tabindex: 0, "data-tip": card.help });
  node.append(make("b", {}, card.value), make("span", {}, card.name));
  document.getElementById("cards").append(node);
}
for (const check of content.checks) {
  document.getElementById("checks").append(make("p", { class: "check" }, check.text));
}

/* tables: sorted by a click on a column's name, searched by what is typed */
function table(spec, searchable) {
  const box = make("div", { "data-table": spec.key });
  const body = make("tbody");
  const head = make("tr");
  const count = make("span", { class: "count", role: "status" });
  let rows = spec.rows.slice(), sorted = -1, down = false, wanted = "";
  function fill() {
    const shown = wanted ? rows.filter((row) => row.some((v) => said(v).toLowerCase().includes(wanted))) : rows;
    body.replaceChildren(...shown.map((row) => {
      const line = make("tr");
      row.forEach((value, j) => {
        const column = spec.columns[j];
        const cell = make(j ? "td" : "th", { class: column.numeric ? "n" : said(value).length > 40 ? "long" : null, scope: j ? null : "row" }, worded(value, column));
        cell.setAttribute("data-tip", `${said(row[0])}, ${column.name}: ${said(value, 8)}\n${column.help}`);
        line.append(cell);
      });
      return line;
    }));
    count.textContent = shown.length === spec.rows.length ? `${spec.rows.length} rows` : `${shown.length} of ${spec.rows.length} rows`;
  }
  spec.columns.forEach((column, j) => {
    const button = make("button", { type: "button", "data-tip": column.help }, column.name);
    const cell = make("th", { scope: "col", class: column.numeric ? "n" : null, "aria-sort": "none" }, button);
    button.addEventListener("click", () => {
      down = sorted === j ? !down : column.numeric;
      sorted = j;
      const text = new Intl.Collator(undefined, { numeric: true });
      rows.sort((a, b) => {
        const [x, y] = [a[j], b[j]];
        if (x === null || y === null) return (x === null) - (y === null);
        const order = typeof x === "string" ? text.compare(x, y) : x - y;
        return down ? -order : order;
      });
      for (const other of head.children) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      fill();
    });
    head.append(cell);
  });
  if (searchable) {
    const input = make("input", { type: "search", id: "search-" + spec.key, placeholder: "search" });
    input.addEventListener("input", () => { wanted = input.value.trim().toLowerCase(); fill(); });
    box.append(make("div", { class: "controls" }, make("label", { for: "search-" + spec.key }, "Search: "), input, count));
  }
  const whole = make("table", {}, make("caption", { class: "count" }, spec.title), make("thead", {}, head), body);
  box.append(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": spec.title }, whole));
  fill();
  return box;
}
for (const spec of content.tables) {
  if (spec.key === "sites") document.getElementById("site-table").append(table(spec, true));
  else document.getElementById("tables").append(table(spec, spec.rows.length > 20));
}
if (!content.tables.some((spec) => spec.key === "sites")) document.getElementById("sites").hidden = true;
if (content.left) document.getElementById("left-table").append(table(content.left, false));

/* pictures */
function ticks(low, high, n, whole) {
  if (whole) return [...new Set(ticks(low, high, n).map(Math.ceil))].filter((t) => t <= high);
  const span = high - low || Math.abs(high) || 1;
  const raw = span / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => span / s <= n) || 10 * power;
  const found = [];
  // Counted, not added up: a sum of steps does not come back to zero.
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k += 1) found.push(Number((k * step).toPrecision(10)));
  return found;
}
function scale(values, from, to, zero) {
  const known = values.filter((v) => v !== null && v !== undefined && Number.isFinite(v));
  if (zero) known.push(0);
  let low = Math.min(...known), high = Math.max(...known);
  if (!known.length) { low = 0; high = 1; }
  if (low === high) { low -= 1; high += 1; }
  const pad = 0.04 * (high - low);
  low -= pad; high += pad;
  const place = (v) => from + (v - low) / (high - low) * (to - from);
  place.low = low; place.high = high;
  return place;
}
function frame(svg, x, y, box, labels) {
  for (const t of ticks(x.low, x.high, Math.max(2, Math.floor((box.right - box.left) / 70)), labels.whole)) {
    svg.append(draw("line", { class: "axis", x1: x(t), x2: x(t), y1: box.top, y2: box.bottom }));
    svg.append(draw("text", { x: x(t), y: box.bottom + 14, "text-anchor": "middle" }, said(t)));
  }
  if (y) for (const t of ticks(y.low, y.high, 5)) {
    svg.append(draw("line", { class: "axis", x1: box.left, x2: box.right, y1: y(t), y2: y(t) }));
    svg.append(draw("text", { x: box.left - 6, y: y(t) + 4, "text-anchor": "end" }, said(t, 8)));
  }
  if (labels.x) svg.append(draw("text", { x: (box.left + box.right) / 2, y: box.bottom + 30, "text-anchor": "middle" }, labels.x));
  if (labels.y) svg.append(draw("text", { x: box.left - 46, y: box.top - 6 }, labels.y));
}
function canvas(width, height, title) {
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  svg.append(draw("title", {}, title));
  return svg;
}
function mark(kind, x, y, k, attributes) {
  if (kind) return draw("rect", { x: x - 4, y: y - 4, width: 8, height: 8, transform: k % 4 === 2 ? `rotate(45 ${x} ${y})` : null, fill: colour(k), ...attributes });
  return draw("circle", { cx: x, cy: y, r: 4, fill: colour(k), ...attributes });
}
// Room for the longest label, and a label cut to the room there is; a letter is about six wide.
const margin = (labels, width) => Math.min(width * 0.38, Math.max(60, 6.2 * Math.max(...labels.map((l) => l.length)) + 16));
const cut = (label, room) => label.length > room / 6.2 ? label.slice(0, Math.floor(room / 6.2) - 2) + "…" : label;
const number = (value, low, high) => said(value) + (low !== undefined && low !== null ? ` (${said(low)} to ${said(high)})` : "");

const drawers = {
  dots(spec, width) {
    const items = spec.items.slice().sort((a, b) => b.value - a.value);
    const named = items.length <= 40;
    const step = named ? 18 : Math.max(0.6, Math.min(8, 420 / items.length));
    const left = named ? margin(items.map((i) => i.label), width) : 16;
    const height = Math.ceil(items.length * step) + 56;
    const svg = canvas(width, height, spec.title);
    const box = { left, right: width - 12, top: 10, bottom: height - 42 };
    const x = scale(items.flatMap((i) => [i.value, i.low, i.high]), box.left, box.right, spec.zero);
    frame(svg, x, null, box, { x: spec.xlabel });
    if (spec.zero) svg.append(draw("line", { class: "zero", x1: x(0), x2: x(0), y1: box.top, y2: box.bottom }));
    items.forEach((item, k) => {
      const y = box.top + (k + 0.5) * step;
      const words = `${item.label}: ${number(item.value, item.low, item.high)}`;
      if (named) svg.append(draw("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, cut(item.label, left)));
      if (item.low !== undefined && item.low !== null) svg.append(draw("line", { x1: x(item.low), x2: x(item.high), y1: y, y2: y, stroke: colour(item.group), "stroke-width": named ? 2 : Math.min(1, step), opacity: 0.7, "data-tip": words }));
      svg.append(draw("circle", { cx: x(item.value), cy: y, r: named ? 4 : 2.2, fill: colour(item.group), "data-tip": words }));
    });
    return svg;
  },
  forest(spec, width) {
    const labels = [...new Set(spec.items.map((i) => i.label))];
    const many = spec.groups.length;
    const row = Math.max(20, 9 * many + 8);
    const height = labels.length * row + 62 + (many > 1 ? 22 : 0);
    const svg = canvas(width, height, spec.title);
    const box = { left: margin(labels, width), right: width - 12, top: many > 1 ? 30 : 8, bottom: height - 42 };
    const x = scale(spec.items.flatMap((i) => [i.value, i.low, i.high]), box.left, box.right, true);
    frame(svg, x, null, box, { x: "effect on the target" });
    svg.append(draw("line", { class: "zero", x1: x(0), x2: x(0), y1: box.top, y2: box.bottom }));
    if (many > 1) spec.groups.forEach((name, k) => {
      const at = box.left + k * Math.min(110, (box.right - box.left) / many);
      svg.append(mark(k % 2, at + 4, 12, k, {}), draw("text", { x: at + 13, y: 16 }, name));
    });
    labels.forEach((label, j) => svg.append(draw("text", { x: box.left - 8, y: box.top + (j + 0.5) * row + 4, "text-anchor": "end" }, cut(label, box.left))));
    for (const item of spec.items) {
      const y = box.top + labels.indexOf(item.label) * row + row * (item.group + 0.5) / many;
      const words = `${item.label}, ${spec.groups[item.group]}: ${number(item.value, item.low, item.high)}`;
      if (item.low !== undefined && item.low !== null) svg.append(draw("line", { x1: x(item.low), x2: x(item.high), y1: y, y2: y, stroke: colour(item.group), "stroke-width": 2.5, opacity: 0.7, "data-tip": words }));
      svg.append(mark(item.group % 2, x(item.value), y, item.group, { "data-tip": words }));
    }
    return svg;
  },
  line(spec, width) {
    const height = 270;
    const svg = canvas(width, height, spec.title);
    const box = { left: 64, right: width - 14, top: 22, bottom: height - 42 };
    const x = scale(spec.series.flatMap((s) => s.x), box.left, box.right);
    const y = scale(spec.series.flatMap((s) => s.y), box.bottom, box.top);
    const whole = spec.series.every((s) => s.x.every(Number.isInteger));
    frame(svg, x, y, box, { x: spec.xlabel, y: spec.ylabel, whole });
    spec.series.forEach((series, k) => {
      const points = series.x.map((v, i) => [x(v), y(series.y[i])]), own = colour(2 * k);
      const named = series.label === undefined ? "" : `${series.label}, `;
      if (named) svg.append(draw("text", { x: box.right - 4, y: box.top + 14 + 16 * k, "text-anchor": "end", style: `fill: ${own}` }, `${k ? "- -" : "—"} ${series.label}`));
      svg.append(draw("polyline", { points: points.map((p) => p.join(",")).join(" "), fill: "none", stroke: own, "stroke-width": 2, "stroke-dasharray": k ? "6 4" : "none" }));
      if (points.length <= 60) points.forEach((p, i) => {
        const chosen = !k && spec.mark !== null && series.x[i] === spec.mark;
        svg.append(draw("circle", { cx: p[0], cy: p[1], r: chosen ? 7 : 3.5, fill: chosen ? COLOURS[1] : own, "data-tip": `${named}${spec.xlabel} ${said(series.x[i])}: ${said(series.y[i], 9)}${chosen ? " (chosen)" : ""}` }));
      });
    });
    return svg;
  },
  scatter(spec, width) {
    const height = Math.min(420, Math.max(280, width * 0.7));
    const svg = canvas(width, height, spec.title);
    const box = { left: 52, right: width - 12, top: 22, bottom: height - 42 };
    const x = scale(spec.items.map((i) => i.x), box.left, box.right);
    const y = scale(spec.items.map((i) => i.y), box.bottom, box.top);
    frame(svg, x, y, box, { x: spec.xlabel, y: spec.ylabel });
    for (const item of spec.items) {
      const words = item.label + (item.group === undefined ? "" : item.group < 0 ? ": in no kind" : `: kind ${item.group}`);
      svg.append(mark(item.group % 2 === 1, x(item.x), y(item.y), item.group, { "data-tip": words, opacity: 0.85 }));
      if (spec.items.length <= 15) {
        const over = x(item.x) > (box.left + box.right) / 2;
        svg.append(draw("text", { x: x(item.x) + (over ? -8 : 8), y: y(item.y) + 4, "text-anchor": over ? "end" : "start" }, cut(item.label, 110)));
      }
    }
    return svg;
  },
  heat(spec, width) {
    const cell = Math.max(2.5, Math.min(16, 440 / spec.rows.length)), named = cell >= 10;
    const left = named ? margin(spec.rows, width) : 20, height = Math.ceil(spec.rows.length * cell) + 34;
    const svg = canvas(width, height, spec.title);
    const each = (width - left - 8) / spec.columns.length;
    spec.columns.forEach((name, j) => svg.append(draw("text", { x: left + (j + 0.5) * each, y: 16, "text-anchor": "middle" }, each > 50 ? name : String(j))));
    spec.rows.forEach((name, i) => {
      if (named) svg.append(draw("text", { x: left - 8, y: 24 + (i + 0.5) * cell + 4, "text-anchor": "end" }, cut(name, left)));
      spec.values[i].forEach((value, j) => svg.append(draw("rect", { x: left + j * each + 1, y: 24 + i * cell, width: Math.max(1, each - 2), height: Math.max(1, cell - 1), fill: COLOURS[0], "fill-opacity": 0.06 + 0.94 * Math.max(0, Math.min(1, value || 0)), "data-tip": `${name}, ${spec.columns[j]}: ${said(value)}` })));
    });
    return svg;
  },
  bands(spec, width, chosen) {
    const height = 320, series = spec.series[chosen || 0];
    const svg = canvas(width, height, `${spec.title}, ${series.name}`);
    const box = { left: 58, right: width - 14, top: 22, bottom: height - 42 };
    const x = scale(spec.x, box.left, box.right);
    const y = scale(spec.series.flatMap((s) => [...s.low, ...s.high]), box.bottom, box.top);
    frame(svg, x, y, box, { x: spec.xlabel, y: spec.ylabel });
    const up = spec.x.map((v, i) => `${x(v)},${y(series.high[i])}`), back = spec.x.map((v, i) => `${x(v)},${y(series.low[i])}`).reverse();
    svg.append(draw("polygon", { points: [...up, ...back].join(" "), fill: COLOURS[0], opacity: 0.2 }));
    svg.append(draw("polyline", { points: spec.x.map((v, i) => `${x(v)},${y(series.mean[i])}`).join(" "), fill: "none", stroke: COLOURS[0], "stroke-width": 2.5 }));
    const half = (x(spec.x[1]) - x(spec.x[0])) / 2;
    spec.x.forEach((v, i) => svg.append(draw("rect", { x: x(v) - half, y: box.top, width: 2 * half, height: box.bottom - box.top, fill: "transparent", "data-tip": `${series.name}, ${spec.xlabel} ${said(v)}: ${said(series.mean[i])}\n95 %: ${said(series.low[i])} to ${said(series.high[i])}` })));
    return svg;
  },
};

const redraw = [];
for (const spec of content.pictures) {
  const figure = make("figure", { "data-picture": spec.type }, make("h3", {}, spec.title));
  const place = make("div");
  let chosen = 0;
  if (spec.type === "bands") {
    const select = make("select", { "aria-label": "site" });
    spec.series.forEach((s, k) => select.append(make("option", { value: k }, s.name)));
    select.addEventListener("change", () => { chosen = Number(select.value); paint(); });
    figure.append(make("div", { class: "controls" }, make("label", {}, "Site: ", select)));
  }
  figure.append(place, make("figcaption", {}, spec.caption));
  document.getElementById("figures").append(figure);
  const paint = () => place.replaceChildren(drawers[spec.type](spec, Math.max(280, Math.floor(place.clientWidth || figure.clientWidth || 600)), chosen));
  redraw.push(paint);
}
redraw.forEach((paint) => paint());
if (!content.pictures.length) document.getElementById("pictures").hidden = true;
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => redraw.forEach((paint) => paint()), 120); });
document.documentElement.dataset.ready = "yes";
})();
