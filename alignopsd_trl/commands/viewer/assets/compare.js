"use strict";
// Several runs: a row each with results and paired differences to the first, then curves as small multiples.

const head = JSON.parse(document.getElementById("head").textContent);

function results() {
  const rows = head.names.map((name, at) => {
    const { before, after } = head.evaluation[at], pair = at ? head.paired[at] : null;
    return [name, head.facts[at].method || "–", head.facts[at].seed || "–", estimate(before && before.success), estimate(after && after.success), estimate(after && after.score), gained(pair && pair.success), gained(pair && pair.score), at === 0 ? "(the others are held against it)" : pair ? `${pair.newly_won} won, ${pair.newly_lost} lost of ${pair.tasks}` : "–"];
  });
  return table(["run", "method", "seed", "success before, %", "success after, %", "score after, %", `success − ${head.names[0]}, points`, "score, points", "episodes that changed"], rows);
}

function warnings() {
  const sums = new Set(head.evaluation.map((one) => one.after && one.after.checksum).filter(Boolean));
  const without = head.names.filter((name, at) => !head.evaluation[at].after);
  return [sums.size > 1 ? make("p", { class: "lost" }, "The runs were evaluated on different panels; differences are over the tasks that both have.") : null,
    without.length ? make("p", { class: "lost" }, `No panel was played after training in ${without.join(", ")}: a recipe does so; their differences stay empty.`) : null];
}

const lineOf = (at) => penOf(at, head.names.length);

function key(runs) {
  const sample = (at) => { const [stroke, dashes, width, opacity] = lineOf(at); return shape("svg", { width: 34, height: 10 }, shape("line", { x1: 1, x2: 33, y1: 5, y2: 5, stroke, "stroke-dasharray": dashes, "stroke-width": width, opacity })); };
  return make("div", { class: "legend key" }, runs.map((at) => make("span", { class: "sign" }, sample(at), ` ${head.names[at]}`)));
}

// a panel a quantity with all runs in it
function multiples(title, curves, zero) {
  const names = [...new Set(curves.flat().map((line) => line.name))];
  const lines = (name) => curves.flatMap((found, at) => found.filter((line) => line.name === name).map((line) => ({ ...line, name: head.names[at], pen: lineOf(at) })));
  const flat = (name) => zero && lines(name).every((line) => line.values.every((value) => Math.abs(value) < 1e-12));
  const told = names.filter((name) => !flat(name)), equal = names.filter(flat);
  if (!names.length) return [];
  const runs = curves.map((found, at) => (found.some((line) => told.includes(line.name)) ? at : null)).filter((at) => at !== null);
  return [make("h2", {}, title), key(runs), make("div", { class: "multiples" }, told.map((name) => chart(name, lines(name), { width: 250, height: 120, zero }))),
    equal.length ? make("p", { class: "none" }, `equal at every step: ${equal.join(", ")}`) : null];
}

// paired differences by category: a row a category, a line a run
function categories() {
  const pairs = head.paired.map((pair, at) => [pair, at]).filter(([pair, at]) => at && pair && Object.keys(pair.categories || {}).length);
  if (!pairs.length) return [];
  const names = [...new Set(pairs.flatMap(([pair]) => Object.keys(pair.categories)))];
  const rows = names.flatMap((name) => pairs.map(([pair, at]) => { const one = pair.categories[name]; return one ? [name, head.names[at], one.success.mean === null ? "–" : difference(one.success), gained(one.success), gained(one.score), one.tasks] : null; }).filter(Boolean));
  return [make("h2", {}, `by category: success − ${head.names[0]}, points, task by task`), table(["category", "run", "−100 to +100", "success", "score", "tasks"], rows)];
}

function difference(value, width = 220, height = 16) {
  const x = (points) => 5 + ((width - 10) * (points + 100)) / 200;
  const colour = value.low > 0 ? "var(--more)" : value.high < 0 ? "var(--less)" : "var(--soft)";
  return shape("svg", { class: "range", width, height, role: "img", "aria-label": `${signed(value.mean, 1)} points` },
    shape("line", { x1: x(-100), x2: x(100), y1: 8, y2: 8, stroke: "var(--line)" }), shape("line", { x1: x(0), x2: x(0), y1: 0, y2: height, stroke: "var(--soft)" }),
    shape("line", { x1: x(value.low), x2: x(value.high), y1: 8, y2: 8, stroke: colour, "stroke-width": 2 }), shape("circle", { cx: x(value.mean), cy: 8, r: 3.5, fill: colour }));
}

const others = [[], ...head.differences.slice(1)];
document.getElementById("page").replaceChildren(
  make("header", {}, make("h1", {}, head.names.join(" · ")), make("span", { class: "right" }, theme())),
  make("div", { class: "wide" }, warnings(), results(), ...categories(), ...multiples("rollout step by rollout step", head.curves, false), ...multiples(`difference to ${head.names[0]}, rollout step by rollout step`, others, true)),
);
