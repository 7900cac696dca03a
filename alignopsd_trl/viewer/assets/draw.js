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
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
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

// the span of values that curves need, for axes that several of them share
function reachOf(lines, zero = false) {
  const all = lines.flatMap((line) => [...line.values, ...(line.low || []), ...(line.high || [])]).concat(zero ? [0] : []);
  return [Math.min(...all), Math.max(...all)];
}

// reach: [bottom, top] of the axis, written at its ends
function curve(line, options = {}) {
  const { width = 150, height = 44, mark = null, pick = null, zero = false } = options;
  const [bottom, top] = options.reach || reachOf([line], zero);
  const [first, last] = [Math.min(...line.steps), Math.max(...line.steps)];
  const x = (step) => 3 + ((width - 6) * (step - first)) / Math.max(last - first, 1);
  const y = (value) => height - 3 - ((height - 6) * (value - bottom)) / (top - bottom || 1);
  const path = (values) => values.map((value, at) => `${at ? "L" : "M"}${x(line.steps[at])} ${y(value)}`).join("");
  const svg = shape("svg", { width, height, role: "img", "aria-label": `${line.name}: ${shown(line.values[0])} to ${shown(line.values.at(-1))}` });
  if (line.low && line.low.length) {
    const back = [...line.steps].reverse().map((step, at) => `L${x(step)} ${y([...line.low].reverse()[at])}`).join("");
    svg.append(shape("path", { d: `${path(line.high)}${back}Z`, fill: "var(--less)", opacity: 0.18 }));
  }
  if (zero) svg.append(shape("line", { x1: 0, x2: width, y1: y(0), y2: y(0), stroke: "var(--soft)", "stroke-dasharray": "3 3" }));
  svg.append(shape("path", { d: path(line.values), fill: "none", stroke: "var(--less)", "stroke-width": 1.6 }));
  line.values.forEach((value, at) => svg.append(shape("circle", { cx: x(line.steps[at]), cy: y(value), r: line.values.length > 40 ? 0.8 : 1.8, fill: "var(--less)" })));
  if (mark !== null && mark >= first && mark <= last) {
    svg.append(shape("line", { class: "now", x1: x(mark), x2: x(mark), y1: 0, y2: height, stroke: "var(--more)", "stroke-width": 1.5 }));
  }
  if (options.reach) [[top, 9], [bottom, height - 3]].forEach(([value, at]) => svg.append(shape("text", { class: "soft", x: width - 2, y: at, "text-anchor": "end", style: "font-size:9px" }, shown(value))));
  if (pick) {
    svg.addEventListener("click", (event) => {
      const part = (event.clientX - svg.getBoundingClientRect().left - 3) / (width - 6);
      pick(first + part * (last - first));
    });
  }
  const ends = `${shown(line.values[0])} → ${shown(line.values.at(-1))}`;
  return make("figure", {}, make("figcaption", {}, `${line.name}  ${ends}`), svg);
}

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
  return make("table", {}, make("tr", {}, head.map((name) => make("th", {}, name))), rows.map((row) => make("tr", {}, row.map(cell("td")))));
}

function estimate(value) {
  if (!value || value.mean === null) return "–"; // nobody knows who won
  const point = (number) => number.toFixed(1).replace("-", "−");
  const interval = value.low === null || value.low === undefined ? "" : ` [${point(value.low)}, ${point(value.high)}]`;
  return point(value.mean) + interval;
}
