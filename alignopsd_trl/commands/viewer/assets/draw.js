"use strict";
// Elements, colours and curves that both pages draw with. Texts of a run are always set as text.

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  fill(node, attributes, children);
  return node;
}

function shape(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(node, attributes, children);
  return node;
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

function shown(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value).replace("-", "−");
  const small = Math.abs(value) < 0.005 && value !== 0;
  return (small ? value.toExponential(1) : value.toFixed(digits)).replaceAll("-", "−");
}

function signed(value, digits = 2) {
  return (value > 0 ? "+" : "") + shown(value, digits);
}

// part from -1 (less) over 0 (even) to 1 (more); both hues differ in lightness too, and signs are written beside them
function tint(part, ground = "var(--even)") {
  const bounded = Math.max(-1, Math.min(1, part || 0));
  const share = Math.round(Math.abs(bounded) * 100);
  return `color-mix(in srgb, var(--${bounded < 0 ? "less" : "more"}) ${share}%, ${ground})`;
}

// lines of one quantity: solid and broad, then dashed and narrower, so that equal ones are still seen
const PENS = [["var(--less)", null, 3.6, 0.7], ["var(--more)", "6 3", 2.2, 1], ["var(--mark)", "2 3", 1.5, 1], ["var(--won)", "7 2 2 2", 1.6, 1], ["var(--soft)", "1 3", 1.8, 1], ["var(--text)", "9 4", 1.4, 1]];
const penOf = (at, of) => (of > 1 ? PENS[at % PENS.length] : ["var(--less)", null, 1.6, 1]);

// a few round numbers that hold a range between the first and the last of them
function ticks(bottom, top, least = 0) {
  const raw = (top - bottom) / 3 || 1, unit = 10 ** Math.floor(Math.log10(raw));
  const gap = Math.max(least, unit * [1, 2, 5, 10].find((part) => part * unit >= raw * 0.999));
  const found = [];
  for (let at = Math.floor(bottom / gap + 1e-9); found.length < 2 || found.at(-1) < top - gap * 1e-9; at++) found.push(at * gap);
  return { found, digits: Math.max(0, -Math.floor(Math.log10(gap) + 1e-9)) };
}

const tickText = (value, digits) => (digits > 4 ? value.toExponential(0) : value.toFixed(digits)).replaceAll("-", "−");

// lines: [{ name, steps, values, low, high, pen }] over rollout steps, with numbers on both axes outside of the curves
function chart(name, lines, options = {}) {
  const { width = 212, height = 104, mark = null, pick = null, zero = false, note = "" } = options;
  const left = 40, right = 8, top = 6, bottom = 17;
  const all = lines.flatMap((line) => [...line.values, ...(line.low || []), ...(line.high || [])]).concat(zero ? [0] : []);
  let [least, most] = [Math.min(...all), Math.max(...all)];
  if (most - least < 1e-12) { const room = Math.abs(most) * 0.1 || 1; least -= room; most += room; }
  const { found, digits } = ticks(least, most);
  [least, most] = [found[0], found.at(-1)];
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((one, other) => one - other);
  const [first, last] = [steps[0], steps.at(-1)];
  const x = (step) => (first === last ? (left + width - right) / 2 : left + ((width - left - right) * (step - first)) / (last - first));
  const y = (value) => height - bottom - ((height - bottom - top) * (value - least)) / (most - least);
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": lines.map((line) => `${name}${line.name ? ` of ${line.name}` : ""}: ${shown(line.values[0])} to ${shown(line.values.at(-1))}`).join("; ") });
  for (const value of found) svg.append(shape("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "var(--line)", "stroke-width": 0.6 }), shape("text", { class: "soft tick", x: left - 4, y: y(value) + 3, "text-anchor": "end" }, tickText(value, digits)));
  const below = ticks(first, last, 1).found.filter((step) => step >= first && step <= last);
  for (const step of first === last ? [first] : below) svg.append(shape("text", { class: "soft tick", x: x(step), y: height - 5, "text-anchor": "middle" }, String(step)));
  svg.append(shape("path", { d: `M${left} ${top}V${height - bottom}H${width - right}`, fill: "none", stroke: "var(--soft)", "stroke-width": 0.8 }));
  if (zero) svg.append(shape("line", { x1: left, x2: width - right, y1: y(0), y2: y(0), stroke: "var(--soft)", "stroke-dasharray": "3 3" }));
  for (const line of lines) svg.append(...drawnLine(line, x, y));
  if (mark !== null && mark >= first && mark <= last) svg.append(shape("line", { class: "now", x1: x(mark), x2: x(mark), y1: top, y2: height - bottom, stroke: "var(--mark)", "stroke-width": 1.2 }));
  if (pick) svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) * width) / box.width;
    pick(first + ((at - left) / (width - left - right)) * (last - first));
  });
  return make("figure", { title: note || null }, make("figcaption", {}, name), svg);
}

function drawnLine(line, x, y) {
  const [colour, dashes, width, opacity] = line.pen || penOf(0, 1);
  const points = (values) => values.map((value, at) => `${x(line.steps[at])} ${y(value)}`);
  const parts = [];
  if (line.low && line.low.length) parts.push(shape("path", { d: `M${points(line.high).join("L")}L${points(line.low).reverse().join("L")}Z`, fill: colour, opacity: 0.15 }));
  parts.push(shape("path", { class: "curve", d: `M${points(line.values).join("L")}`, fill: "none", stroke: colour, "stroke-width": width, "stroke-dasharray": dashes, opacity }));
  if (line.values.length <= 12) line.values.forEach((value, at) => parts.push(shape("circle", { cx: x(line.steps[at]), cy: y(value), r: 1.2 + width / 2, fill: colour, opacity }, shape("title", {}, `${line.name ? `${line.name}, ` : ""}step ${line.steps[at]}: ${shown(value, 3)}`))));
  return parts;
}

// a part that folds and stays as the reader left it
const unfolded = new Map();
function fold(name, summary, open, ...children) {
  const node = make("details", { class: `fold ${name}`, open: unfolded.has(name) ? unfolded.get(name) : open }, make("summary", {}, summary), ...children);
  node.addEventListener("toggle", () => unfolded.set(name, node.open));
  return node;
}

const narrow = () => innerWidth <= 700;

function theme() {
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const wanted = stored() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const set = (name) => {
    document.documentElement.dataset.theme = name;
    try { localStorage.setItem("theme", name); } catch { /* a page in a frame may keep nothing */ }
  };
  document.documentElement.dataset.theme = wanted;
  const other = () => set(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  return make("button", { title: "light or dark", onclick: other }, "◐");
}

function table(head, rows) {
  const cell = (tag) => (value) => make(tag, { class: typeof value === "number" ? "number" : null }, value instanceof Node ? value : shown(value, 3));
  return make("div", { class: "across" }, make("table", {}, make("tr", {}, head.map((name) => make("th", {}, name))), rows.map((row) => make("tr", {}, row.map(cell("td"))))));
}

function estimate(value) {
  if (!value || value.mean === null) return "–"; // nobody knows who won
  const point = (number) => number.toFixed(1).replace("-", "−");
  const interval = value.low === null || value.low === undefined ? "" : ` [${point(value.low)}, ${point(value.high)}]`;
  return point(value.mean) + interval;
}

// a difference in points with its interval
function gained(value) {
  if (!value || value.mean === null) return "–";
  const point = (number) => (number > 0 ? "+" : "") + number.toFixed(1).replace("-", "−");
  return `${point(value.mean)} [${point(value.low)}, ${point(value.high)}]`;
}
